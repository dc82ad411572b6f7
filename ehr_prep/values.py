"""Values as they come: ids of patients, numbers, and dates, with the format they are written in."""

from __future__ import annotations

import datetime as dt
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import some
from font.errors import InputError, ReportWarning, option, option_name
from mmlca.sequences.checks import match_ids

_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_TOLERATED = 0.01  # share of numbers or dates that may be unreadable as stated, or as most are
_AS_FLOAT = re.compile(r"(0|-?[1-9]\d{0,17})\.0+")


# --- what is unusual --------------------------------------------------------------------


class Issue(NamedTuple):
    """Something unusual: how often, what was done about it, and up to five examples."""

    issue: str
    n: int
    action: str
    examples: str


def count_rows(
    issue: str,
    which: NDArray[np.bool_] | None,
    action: str,
    who: NDArray[np.int32],
    ids: pd.Index,
    shown: pd.Series | NDArray[np.int32],
) -> Issue:
    """Count the rows, and show patient and value of the first five; day numbers as dates."""
    rows = np.arange(0) if which is None else np.flatnonzero(which)
    examples = []
    for row in rows[:5]:
        name = ids[who[row]] if who[row] >= 0 else "no id"
        value = some([shown.iat[row]]) if isinstance(shown, pd.Series) else day_text(shown[row])
        examples.append(f"{name}: {value}")
    return Issue(issue, len(rows), action, "; ".join(examples))


def issue_table(issues: list[Issue]) -> pd.DataFrame:
    """The issues that there are; those that several parts of the records have are added up."""
    joined: dict[str, Issue] = {}
    for issue in issues:
        if (before := joined.get(issue.issue)) is not None:
            examples = "; ".join(part for part in (before.examples, issue.examples) if part)
            first = "; ".join(examples.split("; ")[:5])
            issue = before._replace(n=before.n + issue.n, examples=first)
        if issue.n:
            joined[issue.issue] = issue
    return pd.DataFrame(list(joined.values()), columns=list(Issue._fields))


# --- codes and ids ---------------------------------------------------------------------


def factorize(column: pd.Series) -> tuple[NDArray[np.integer[Any]], pd.Index]:
    """Codes (−1: missing) and the distinct values that occur."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, values = column.cat.codes.to_numpy(), column.cat.categories
        used = np.zeros(len(values) + 1, dtype=bool)
        used[codes] = True
        if used[:-1].all():
            return codes, values
        number = np.append(np.cumsum(used[:-1], dtype=np.int32) - 1, np.int32(-1))
        return number[codes], values[used[:-1]]
    codes, values = pd.factorize(column)
    return codes, pd.Index(values, dtype=values.dtype)


def encode_ids(column: pd.Series) -> tuple[NDArray[np.int32], pd.Index, NDArray[np.bool_] | None]:
    """Each row's position in the sorted ids (−1: none), the ids, and which rows differ in type.

    Ids are whole numbers where all of them can be (1, 1.0 and "1" are the same patient, but
    "01" makes all of them text), and text otherwise.
    """
    codes, values = factorize(column)
    other_type = None
    if values.dtype.kind not in "iu":
        raw = values.tolist()
        texts = [_id_text(value) for value in raw]
        is_text = np.array([isinstance(value, str) for value in raw], dtype=bool)
        if is_text.any() and not is_text.all():
            other_type = np.append(~is_text, False)[codes]
        whole = all(_WHOLE.fullmatch(text) for text in texts if text)
        again, unique = pd.factorize(pd.Series([t or None for t in texts], dtype=object))
        codes = np.append(again, -1)[codes]
        values = pd.Index(np.asarray(unique).astype(np.int64) if whole else unique)
    order = np.argsort(values.to_numpy(), kind="stable")
    rank = np.empty(len(values) + 1, dtype=np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    rank[-1] = -1
    ids = values[order]
    return rank[codes], ids.astype(np.int64 if ids.dtype.kind in "iu" else str), other_type


def _id_text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    text = str(value).strip()
    return text.partition(".")[0] if _AS_FLOAT.fullmatch(text) else text


def check_matched(
    ids: pd.Index,
    others: pd.Index,
    matched: NDArray[np.bool_],
    names: tuple[str, str],
    *,
    enough: float = 0.95,
) -> None:
    """An error if none of the ids of one table are in another, a warning if too few are.

    `matched` says which of the ids are among the others, `names` are those of the two tables, and
    `enough` is the share without a warning.
    """
    if not len(ids) or (matched.any() and matched.mean() >= enough):
        return
    name, other = names
    strangers = others[match_ids(others, ids) < 0]
    examples = (
        f"{name} has ids such as {some(map(str, ids[~matched][:3]))}, {other} has "
        f"{some(map(str, (strangers if len(strangers) else others)[:3]))}"
    )
    if not matched.any():
        bare = [pd.Index([str(i).lstrip("0") for i in part]) for part in (ids, others)]
        zeros = (
            ", with or without leading zeros, which Excel drops"
            if bare[0].isin(bare[1]).any()
            else ""
        )
        raise InputError(
            f"none of the {len(ids):,} patients of {name} are in {other}: {examples}; write them "
            f"in the same way{zeros}."
        )
    advice = "check that both write them in the same way."
    warning = ReportWarning(
        f"only {matched.sum():,} of {len(ids):,} patients of {name} are in {other}: {examples}; "
        f"{advice}",
        f"fewer than {100 * enough:g} % of the patients of {name} are in {other}; {advice}",
    )
    warnings.warn(warning, stacklevel=3)


# --- numbers: decimal points and decimal commas -----------------------------------------------


_COMMA = re.compile(r"[+-]?\d+,\d+")
_POINT = re.compile(r"[+-]?\d*\.\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")


def check_decimal(decimal: str | None) -> None:
    if decimal not in (None, ".", ","):
        raise InputError(f"{option_name('decimal')} must be a point or a comma, found {decimal!r}.")


def decimal_sign(values: Iterable[Any], name: str) -> str:
    """The decimal sign of a column's texts: a comma where some have one and none has a point.

    Examples
    --------
    >>> decimal_sign(["12,5", "7", "<2"], "labs.csv"), decimal_sign(["1,234", "12.5"], "labs.csv")
    (',', '.')
    """
    texts = [value.strip() for value in values if isinstance(value, str)]
    commas = [text for text in texts if _COMMA.fullmatch(text)]
    if not commas or any(_POINT.fullmatch(text) for text in texts):
        return "."
    if all(_THOUSANDS.fullmatch(text) for text in commas):
        raise InputError(
            f"nothing shows whether the comma in {some(commas)} of {name} is a decimal comma or "
            f"sets thousands apart; state it, as in {option('decimal', ',')} or "
            f"{option('decimal', '.')}."
        )
    return ","


def read_numbers(values: Iterable[Any], decimal: str | None, name: str) -> NDArray[np.float64]:
    """Texts as numbers with the stated decimal sign, or with the one that they show.

    A stated sign that makes numbers unreadable which the other one reads is an error.
    """
    texts = list(values)
    if decimal is None:
        return to_numbers(texts, decimal_sign(texts, name))
    numbers, other = to_numbers(texts, decimal), "." if decimal == "," else ","
    lost = np.isnan(numbers) & ~np.isnan(to_numbers(texts, other))
    if lost.sum() > _TOLERATED * len(texts):
        raise InputError(
            f"{option('decimal', decimal)} cannot read {lost.sum():,} of the {len(texts):,} "
            f"different numbers of {name}, such as {some(texts[i] for i in np.flatnonzero(lost))}; "
            f"{option('decimal', other)} can."
        )
    return numbers


def to_numbers(values: Iterable[Any], decimal: str) -> NDArray[np.float64]:
    """Texts as numbers, NaN where they are not; the other sign may separate thousands.

    Examples
    --------
    >>> to_numbers(["12,5", "1.234,5", "<2"], ",").tolist()
    [12.5, 1234.5, nan]
    """
    numbers: NDArray[np.float64] = pd.to_numeric(
        pd.Series([_plain(value, decimal) for value in values], dtype=object), errors="coerce"
    ).to_numpy(float)
    return numbers


def _plain(value: Any, decimal: str) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    other = "." if decimal == "," else ","
    if other in text and re.fullmatch(rf"[+-]?\d{{1,3}}(\{other}\d{{3}})+(\{decimal}\d*)?", text):
        text = text.replace(other, "")
    return text.replace(",", ".") if decimal == "," and "." not in text else text


# --- dates --------------------------------------------------------------------------------
#
# A calendar date is taken as written: clock time and time zone are cut off, so that a dose given at
# 23:30 stays on its day.


NO_DATE = np.iinfo(np.int32).min
"""The day number that stands for a missing or unreadable date."""

ISO = "%Y-%m-%d"
"""Also read without dashes, as in 20100503."""

_EPOCH = dt.date(1970, 1, 1).toordinal()
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T ].*)?|(\d{4})(\d\d)(\d\d)(?:T.*|\.0)?")
_CLOCK = re.compile(r"[T\s]+\d{1,2}:\d\d.*", re.DOTALL)
_HOURS = re.compile("%[HIcX]")
_FEW = 5  # unreadable dates that are dropped and counted in any table
_FORMATS = (
    *(f"%{a}{sign}%{b}{sign}%Y" for sign in "/.-" for a, b in ("dm", "md")),
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d-%b-%Y",
    "%d %b %Y",
    "%d%b%Y",
    "%d-%b-%y",
    "%b %d, %Y",
    "%b %d %Y",
    "%d %B %Y",
    "%B %d, %Y",
)
_SHORT_YEARS = tuple(
    f"%{a}{sign}%{b}{sign}%{c}" for sign in "/.-" for a, b, c in ("dmy", "mdy", "ymd")
)
"""Never chosen, since several may fit; proposed where they do."""
_SHAPES = {"%d": r"\d{1,2}", "%m": r"\d{1,2}", "%Y": r"\d{4}"}


class DateFormat(NamedTuple):
    """How the dates of a column are written, such as "%d/%m/%Y", and how that is known."""

    text: str
    why: str


def read_dates(
    columns: Mapping[str, pd.Series], stated: str | None, name: str
) -> tuple[dict[str, NDArray[np.int32]], dict[str, DateFormat]]:
    """The days of each date column of a table, and the format of those that hold texts.

    Without a stated format, each column's is the one that reads most of its values. Whether
    the day or the month comes first is decided by values that only one of them can read
    ("27/02/2017"), else by the other columns of the table.

    Raises
    ------
    ValueError
        If no date can be read; if nothing decides between day and month; if more than 1 % of
        the dates (and more than 5) cannot be read or are written in another format; if years have
        two digits and no format is stated; if a stated format cannot read more than 1 % of the
        dates, or only the opposite order of day and month is ever needed.

    Examples
    --------
    >>> dates = pd.Series(["03/05/2010", "27/02/2017 23:30"])
    >>> days, formats = read_dates({"date": dates}, None, "the table")
    >>> days["date"].astype("datetime64[D]").astype(str).tolist(), formats["date"].text
    (['2010-05-03', '2017-02-27'], '%d/%m/%Y')
    >>> formats["date"].why
    "1 of 2 dates, such as '27/02/2017', cannot have the month first"
    """
    days: dict[str, NDArray[np.int32]] = {}
    texts: dict[str, _Texts] = {}
    for role, column in columns.items():
        if _is_calendar(column):
            days[role] = to_days(column)
        else:
            texts[role] = _Texts.of(column, stated is not None and bool(_HOURS.search(stated)))
    formats: dict[str, DateFormat | None] = {}
    for role, column_texts in texts.items():
        where = f"dates of {name}" if role == "date" else f"dates of {name} ({role})"
        if stated is None:
            formats[role] = _decide(column_texts, where, needed=role == "date")
        else:
            formats[role] = _check_stated(column_texts, stated, where)
    decided = [f for f in formats.values() if f is not None and _swapped(f.text)]
    for role, known in formats.items():
        chosen = known or _as_others(texts[role], decided, name)
        formats[role] = chosen
        days[role] = texts[role].days(chosen.text)
    return days, {role: f for role, f in formats.items() if f is not None}


def to_days(column: pd.Series) -> NDArray[np.int32]:
    """Days since 1970-01-01 of dates or ISO texts, `NO_DATE` where missing or unreadable."""
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_localize(None)
    if _is_calendar(column):
        return _clip(column.to_numpy().astype("datetime64[D]").astype(np.int64))
    return _Texts.of(column).days(ISO)


def one_day(date: Any, name: str) -> int:
    """The day number of a date given as an argument."""
    day = _day(date, ISO)
    if day == NO_DATE:
        called = option_name(name)
        raise InputError(f'{called} must be a date such as "2008-01-01", found {date!r}.')
    return day


def day_text(day: int) -> str:
    return dt.date.fromordinal(int(day) + _EPOCH).isoformat()


def to_dates(days: NDArray[np.int32]) -> NDArray[np.datetime64]:
    """datetime64[s]: pandas has no whole days, and nanoseconds end in 2262."""
    dates = days.astype("datetime64[D]").astype("datetime64[s]")
    dates[days == NO_DATE] = np.datetime64("NaT", "s")
    return dates


class _Texts(NamedTuple):
    """A column of dates.

    Parameters
    ----------
    codes : (rows,)
        The value of each row, −1 if it has none.
    values : list
        The distinct values; texts without their clock time.
    n : (values,)
        In how many rows each value stands; 0 for placeholders such as "unknown".
    """

    codes: NDArray[np.integer[Any]]
    values: list[Any]
    n: NDArray[np.int64]

    @classmethod
    def of(cls, column: pd.Series, keep_clock: bool = False) -> _Texts:
        codes, raw = factorize(column)
        clock = re.compile("$^") if keep_clock else _CLOCK
        number: dict[Any, int] = {}
        place = np.full(len(raw) + 1, -1, dtype=np.int32)
        for i, value in enumerate(raw):
            key = clock.sub("", value.strip()) if isinstance(value, str) else value
            place[i] = number.setdefault(key, len(number))
        if len(number) < len(raw):
            codes = place[codes]
        values = list(number)
        n = np.bincount(codes[codes >= 0], minlength=len(values))
        blank = [isinstance(v, str) and not set(v) & set("123456789") for v in values]
        return cls(codes, values, np.where(blank, 0, n))

    def days(self, date_format: str) -> NDArray[np.int32]:
        days = [_day(value, date_format) for value in self.values]
        return np.take(np.array([*days, NO_DATE], dtype=np.int32), self.codes)

    def read_by(self, date_format: str) -> NDArray[np.bool_]:
        """Which of the distinct values a format can read."""
        shape = _shape(date_format)
        return np.array(
            [
                (not isinstance(v, str) or shape.match(v) is not None)
                and _day(v, date_format) != NO_DATE
                for v in self.values
            ],
            dtype=bool,
        )

    def some(self, which: NDArray[np.bool_]) -> str:
        return some(self.values[i] for i in np.flatnonzero(which)[:6])


def _decide(texts: _Texts, where: str, needed: bool) -> DateFormat | None:
    """The format that reads most; None if day and month cannot be distinguished."""
    total = int(texts.n.sum())
    read = {f: texts.read_by(f) for f in (ISO, *_FORMATS)}
    rows = {f: int(texts.n[mask].sum()) for f, mask in read.items()}
    best = max(rows, key=lambda f: rows[f])
    if not rows[best]:
        if not total and not needed:
            return DateFormat(ISO, "there are no dates")
        serial = [v for v in texts.values if str(v).removesuffix(".0").isdecimal()]
        if serial and all(20_000 < float(v) < 60_000 for v in serial):
            raise InputError(
                f"the {where} are day numbers of Excel (found {some(serial)}); format the column "
                "as a date there and save it again."
            )
        short = [f for f in _SHORT_YEARS if texts.n[texts.read_by(f)].sum() == total]
        if total and short:
            advice = " or ".join(option("date_format", f) for f in short)
            raise InputError(
                f"the {where} have years of two digits (found {texts.some(texts.n > 0)}); state "
                f"how they are written, as in {advice}."
            )
        raise InputError(
            f"none of the {(texts.codes >= 0).sum():,} {where} can be read (found "
            f"{some(texts.values)}); state how they are written with {option('date_format')}, in "
            "the notation of Python's strptime."
        )
    why, other = f"it reads {rows[best]:,} of {total:,} dates", _swapped(best)
    if other is not None:
        only_best, only_other = read[best] & ~read[other], read[other] & ~read[best]
        n_best, n_other = int(texts.n[only_best].sum()), int(texts.n[only_other].sum())
        if n_best == n_other == 0:
            return None
        if n_other > _TOLERATED * (n_best + n_other):
            raise InputError(
                f"the {where} mix day first and month first: {texts.some(only_best)} can only be "
                f"{best} ({n_best:,} rows), {texts.some(only_other)} only {other} ({n_other:,} "
                "rows); write all of them in one order."
            )
        example = texts.values[np.flatnonzero(only_best)[0]]
        first = "month" if best.startswith("%d") else "day"
        why = f"{n_best:,} of {total:,} dates, such as {example!r}, cannot have the {first} first"
    rivals = [mask for f, mask in read.items() if f not in (best, other)]
    stray = np.logical_or.reduce(rivals) & ~read[best]
    if texts.n[stray].sum() > _TOLERATED * total:
        raise InputError(
            f"the {where} mix formats: {rows[best]:,} are written as {best} and "
            f"{texts.n[stray].sum():,} otherwise, such as {texts.some(stray)}; write all of them "
            "in one format."
        )
    lost = ~read[best] & (texts.n > 0)
    if texts.n[lost].sum() > max(_TOLERATED * total, _FEW):
        raise InputError(
            f"{texts.n[lost].sum():,} of the {total:,} {where} cannot be read, such as "
            f"{texts.some(lost)}; the others are written as {best}: correct these, or empty them."
        )
    return DateFormat(best, why)


def _check_stated(texts: _Texts, stated: str, where: str) -> DateFormat:
    total = int(texts.n.sum())
    fits = texts.read_by(stated)
    n_bad = int(texts.n[~fits].sum())
    if n_bad <= _TOLERATED * total:
        other = _swapped(stated)
        if other is not None and n_bad:
            swapped = texts.read_by(other)
            if texts.n[swapped & ~fits].sum() and not texts.n[fits & ~swapped].sum():
                raise InputError(
                    f"{option('date_format', stated)} would swap day and month of the {where}: "
                    f"{texts.some(swapped & ~fits)} can only be {other!r}, and no date only "
                    f"{stated!r}."
                )
        return DateFormat(stated, "stated")
    if stated != ISO and texts.n[~texts.read_by(ISO)].sum() <= _TOLERATED * total:
        return DateFormat(ISO, f"the dates are written that way, not as {stated!r}")
    fitting = [
        f for f in (ISO, *_FORMATS) if texts.n[~texts.read_by(f)].sum() <= _TOLERATED * total
    ]
    advice = f"{' or '.join(map(repr, fitting))} reads them" if fitting else "no known format does"
    raise InputError(
        f"{option('date_format', stated)} cannot read {n_bad:,} of {total:,} {where}, such as "
        f"{texts.some(~fits & (texts.n > 0))}; {advice}."
    )


def _as_others(texts: _Texts, decided: list[DateFormat], name: str) -> DateFormat:
    """The order of day and month that other columns of the table have."""
    for other in decided:
        if texts.n[~texts.read_by(other.text)].sum() <= _TOLERATED * texts.n.sum():
            return DateFormat(other.text, "as in another column")
    formats = [f for f in _FORMATS if texts.n[texts.read_by(f)].sum() == texts.n.sum()]
    advice = [option("date_format", f) for f in formats[:2] or ["%d/%m/%Y", "%m/%d/%Y"]]
    raise InputError(
        f"nothing shows whether day or month comes first in the {texts.n.sum():,} dates of {name} "
        f"({texts.some(texts.n > 0)}): none has a number above 12; state it, as in "
        f"{' or '.join(advice)}."
    )


def _swapped(date_format: str) -> str | None:
    """The same format with day and month in the other order; None where their order is clear."""
    if not re.match(r"%[dm].%[dm].%[yY]", date_format):
        return None
    return date_format.translate(str.maketrans("dm", "md"))


def _shape(date_format: str) -> re.Pattern[str]:
    """A quick test before the slow one."""
    parts = re.split(r"(%[a-zA-Z])", date_format)
    shape = "".join(
        _SHAPES.get(part, r"\S+") if part.startswith("%") else re.escape(part) for part in parts
    )
    return re.compile("" if date_format == ISO else shape)


def _is_calendar(column: pd.Series) -> bool:
    is_zoned = isinstance(column.dtype, pd.DatetimeTZDtype)
    return is_zoned or (column.dtype.kind == "M" and isinstance(column.dtype, np.dtype))


def _clip(days: NDArray[np.int64]) -> NDArray[np.int32]:
    absent = days == np.iinfo(np.int64).min
    in_calendar = np.clip(days, 1 - _EPOCH, dt.date.max.toordinal() - _EPOCH).astype(np.int32)
    in_calendar[absent] = NO_DATE
    return in_calendar


def _day(value: Any, date_format: str) -> int:
    try:
        if isinstance(value, np.datetime64):
            return int(_clip(value.astype("datetime64[D]").astype(np.int64).reshape(1))[0])
        if isinstance(value, dt.datetime):
            date = value.date()
        elif isinstance(value, dt.date):
            date = value
        elif date_format != ISO:
            date = dt.datetime.strptime(str(value).strip(), date_format).date()
            if "%y" in date_format and date > dt.date.today():  # a birth, long ago
                date = date.replace(year=date.year - 100)
        else:
            match = _ISO.fullmatch(str(value).strip())
            if match is None:
                return NO_DATE
            year, month, day = (int(g) for g in match.groups() if g is not None)
            date = dt.date(year, month, day)
    except (ValueError, TypeError):
        return NO_DATE
    return date.toordinal() - _EPOCH
