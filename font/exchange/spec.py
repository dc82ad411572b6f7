"""The specification of the exchange files, in words.

"One round" is one upload of models (model files, site → all), one upload of counts (labels files,
site → centre) and one broadcast of the result (ensemble file, centre → all). A refinement may
follow, in steps from 0: one upload of sums (sums files, site → centre) and one broadcast of what
they add up to (shared file, centre → all). The files travel by any means, e-mail included;
`font.exchange.flower` sends the same files over a network. What follows is true of every file; what
the payload of a message holds is in its module under `font.exchange.messages`, and
`specification()` puts all together.

Every file is one JSON object in UTF-8. Reading checks all of it, and refuses what does not fit with
one sentence (an `InputError`); nothing in a file is executed or names code to load.

=================== =========================================================================
field               content
=================== =========================================================================
format              "font exchange"
version             2
kind                the message: "model", "labels", "ensemble" or another of those below
study               name of the study; files of another study are refused
round               number of the round within the study, from 1
site                name of the sender
created             day of writing, YYYY-MM-DD in UTC; no time, and never a patient's date
software            program that wrote the file
payload             the content, below
sha256              SHA-256 of the payload as canonical JSON (keys sorted, no spaces, UTF-8). It
                    finds damage and careless edits; it does not show who sent a file.
signature           optional: {key, value}, an Ed25519 public key and signature (64 and 128
                    hexadecimal digits) over the line "font exchange file, signed", a line feed,
                    and all fields but payload and signature as canonical JSON. A reader that knows
                    the site's key refuses files without it; see `font.exchange.signatures`.
=================== =========================================================================

All counts in model, labels and sums files are rounded at random to multiples of min_count, see
`font.exchange.disclosure`; a reader refuses a count that is not a multiple.

Limits, checked before anything is built: 8 MB per file, 600,000 values, 100,000 texts, nesting of
12, 100 fields of an object, numbers of 30 digits, 127 states or 1,000 columns, 100 classes of a
model, 300 models, 300 sites, 800 classes of all models together, 50 steps of a refinement,
10,000,000 for the squared number of classes times parameters, 100,000,000 for the cubed number of
variables times covariance matrices.

What a file could still reveal:

- One who knows the labels of all other patients of a site can weigh whether a certain patient is
  among them: each count that the patient moves changes what is written with the probability
  1/min_count, and a patient is in M·(M + 1)/2 cells of a labels file. Cells that count nearly the
  same patients share their draw, so that what they reveal does not add up, and with more than
  five models the unit grows with their number (`font.exchange.disclosure.label_unit`). What remains
  is, for a simulated site of 500 with models that err in 5 % and min_count 11, a mean area under
  the curve of such a test of 0.54 from one model, 0.69 from four and 0.77 from twenty (0.94 if the
  unit stayed 11). Patients whom the models label differently are exposed most, and few models per
  site protect better than many.
- Means and centres are based on at least min_count patients; anyone who knows all but one of them
  can work out the value of that patient to the written precision times their number.
- Sums of several steps count nearly the same patients. All steps use one draw for each cell, and
  one draw for all cells based on few patients, so that a patient whom a model singles out shows
  in 1 of min_count cases, at all steps together. A site answers a shared model only if its own sums
  are part of it.
- Two studies, or two rounds, of the same patients are two draws. The ledger of `mmlca.Hospital`
  keeps one draw for each study and round; it cannot know what leaves by other ways.
"""

from __future__ import annotations

import inspect

from font.exchange import masked
from font.exchange.families.registry import all_families
from font.exchange.messages.registry import KINDS, specification_of


def specification() -> str:
    """The whole specification: of every file, of each message and of each family of models."""
    modules = dict.fromkeys(inspect.getmodule(family.write) for family in all_families().values())
    texts = [__doc__, *map(specification_of, KINDS), masked.__doc__, *map(inspect.getdoc, modules)]
    return "\n\n".join((text or "").strip() for text in texts) + "\n"
