"""The specification of the exchange files, in words.

"One round" is one upload of models (model files, site → all), one upload of counts (labels files,
site → centre) and one broadcast of the result (ensemble file, centre → all). A refinement may
follow, in steps from 0: one upload of sums (sums files, site → centre) and one broadcast of what
they add up to (shared file, centre → all). The files travel by any means, e-mail included;
`font.exchange.flower` sends the same files over a network.

Every file is one JSON object in UTF-8. Reading checks all of it, and refuses what does not fit with
a `ValueError` of one sentence; nothing in a file is executed or names code to load.

=================== =========================================================================
field               content
=================== =========================================================================
format              "font exchange"
version             2
kind                "model", "labels", "ensemble", "sums", "shared", "key", "masked" or
                    "effects"
study               name of the study; files of another study are refused
round               number of the round within the study, from 1
site                name of the sender
created             day of writing, YYYY-MM-DD in UTC; no time, and never a patient's date
software            program that wrote the file
payload             the content, below
sha256              SHA-256 of the payload as canonical JSON (keys sorted, no spaces, UTF-8). It
                    finds damage and careless edits; it does not tell who sent a file.
signature           optional: {key, value}, an Ed25519 public key and signature (64 and 128
                    hexadecimal digits) over the line "font exchange file, signed", a line feed,
                    and all fields but payload and signature as canonical JSON. A reader that knows
                    the site's key refuses files without it; see `font.exchange.signatures`.
=================== =========================================================================

All counts in model, labels and sums files are rounded at random to multiples of min_count, see
`font.exchange.privacy`; a reader refuses a count that is no multiple.

Payload of a *model* file; its checksum is the model's fingerprint:

=================== =========================================================================
name                "SITE", or "SITE/1", "SITE/2", … for resamples of a site
min_count           the unit of the counts; no class has fewer patients
bic                 list of {n_classes, above_best}: for each number of classes that the site
                    tried, its BIC minus the lowest, as a whole number; may be empty
model.format        "font k-means", "font gaussian mixture", "font latent class", or another kind
                    that a package registered (`font.register_kind`) and describes
model.version       1
model.patients      patients by class (K), expected numbers rounded
=================== =========================================================================

Models of font's own kinds have:

=================== =========================================================================
model.variables     names of the d columns
model.centres       K-means: centres of the classes (K × d)
model.means         Gaussian mixture: means of the classes (K × d)
model.precision     of centres or means: each column is written as a multiple of this
model.covariance_type  "full", "tied", "diag" or "spherical"
model.covariances   K × d × d, 1 × d × d, K × 1 × d or K × 1 × 1, in that order of types; four
                    significant digits
model.items         latent class model: list of {item, categories}
model.answers       patients by class and answer, item after item (K rows)
model.prior         pseudo-count that receivers add to every answer
=================== =========================================================================

Payload of a *labels* file:

=================== =========================================================================
models              list of {name, fingerprint}, in order
min_count           the unit of the counts, a multiple of that of the study if there are many models
classes             for each model, the patients in each of its classes
tables              for each class of the first model, the second and so on up to the last but
                    one: how many of its patients are in each class of every later model, a text of
                    counts with spaces between them
=================== =========================================================================

Payload of an *ensemble* file:

=================== =========================================================================
models              list of the payloads of the model files, in order
ensemble            `Ensemble.to_dict()`: format, version, settings, models (names), n_classes,
                    shares, weights, centred_weights, agreement, spectrum, n_clusters_choice, axes,
                    centres, proportions, confusion, votes, sites, cluster_sizes; with the method
                    "latent" rows of axes and centres are empty
=================== =========================================================================

Payload of a *sums* file. Sums are whole numbers that stand for value × scale, so that they can be
added exactly, also modulo 2⁶⁴:

=================== =========================================================================
step                0: by the ensemble's clusters; r: by memberships under the shared model of
                    step r − 1
of                  SHA-256 of the payload that the sums answer: of the ensemble or shared file
min_count           the unit of the sums
format              kind of model, as in model.format, of those whose statistics are counts, such
                    as latent class models
per_patient         mean number of events per patient in sums that few patients stand behind
scale               100; with min_count 1, where nothing is rounded, 1,000,000
sums                K × P: for each cluster the patients, then the statistics of the kind, for
                    latent class models those who gave each answer; a sum behind which stand fewer
                    than min_count different patients is 0 or min_count × per_patient
=================== =========================================================================

Payload of a *shared* file:

=================== =========================================================================
step, of, scale     as in the sums files that it adds
last                whether the refinement ends here
ensemble            SHA-256 of the payload of the ensemble that the refinement began with
min_count           the lowest of the sums files; of masked files, the largest, since the centre
                    rounds their sum
model               content of the first model of the ensemble; its states or items and its prior
                    are those of the clusters
labelled            list of {site, patients}: the most that each site can have labelled, given
                    its rounded counts in the ensemble; sums of more are refused
sites               whose sums are in it
sums                K × P, totals, in which of three or more sites none counts for more than all
                    others together; the model is made of them as of its own statistics. Of masked
                    files, sums behind which stand few patients are what their patients' number is
                    when it is spread evenly, see `font.exchange.privacy.round_total`
=================== =========================================================================

Payload of a *key* file (site → all), for secure sums, see `font.exchange.secure`:

=================== =========================================================================
public              the site's X25519 public key, 64 hexadecimal digits; the private one comes
                    from the site's ledger and is another in each study and round
min_count           the least unit that the site accepts for the rounded sum
=================== =========================================================================

Payload of a *masked* file (site → centre), in place of a labels or sums file:

=================== =========================================================================
what                "labels" or "sums"
of                  labels: fingerprint of the list of models (SHA-256 of {name: fingerprint});
                    sums: SHA-256 of the payload that they answer
min_count           the unit to which the centre rounds the sum; of several, the largest
sites               list of {site, key} in order of the names: the set whose masks cancel
values              whole numbers modulo 2⁶⁴, 8 bytes each, lowest first, in base64, exact, plus
                    this site's masks. Labels: for each class of each model its patients, then its
                    patients by the labels of every later model. Sums: the sums by cluster (K × P)
                    in millionths, then in millionths how many patients stand behind each, then the
                    same with each patient divided among the sums of a block that are his, then 8
                    secret numbers of the site, whose sum seeds the centre's rounding
=================== =========================================================================

Payload of an *effects* file (site → centre): how membership in the clusters depends on covariates.
The centre pools the files of all sites by inverse variance:

=================== =========================================================================
of                  SHA-256 of the payload of the ensemble or shared file whose clusters these are
min_count           in every cluster of the file at least so many patients stand behind each
                    column of the covariates, see `font.exchange.effects`
variables           list of {name, levels}: levels is null for numbers, else the levels in order,
                    the first of them the reference
terms               names of the columns, without the intercept
clusters            clusters, from 0, that are compared with cluster 0; those that may not be
                    shown are absent
estimates           log-odds, for each cluster those of all terms, each rounded at random to a
                    multiple of its standard error
errors              standard errors, rounded at random to 1, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9,
                    4.7, 5.6, 6.8 or 8.2 times a power of ten; with what rounding adds
=================== =========================================================================

The mask of two sites is the ChaCha20 key stream (nonce 0, read as little-endian 64-bit numbers) of
the key that HKDF-SHA256 makes of their X25519 secret, with a fixed line, the SHA-256 of the JSON
list [study, round, what, of, sites with keys] and the two names as info; the site whose name comes
first adds it, the other subtracts it.

Limits, checked before anything is built: 8 MB per file, 600,000 values, 100,000 texts, nesting of
12, 100 fields of an object, numbers of 30 digits, 127 states or 1,000 columns, 100 classes of a
model, 300 models, 300 sites, 800 classes of all models together, 50 steps of a refinement,
10,000,000 for the squared number of classes times parameters, 100,000,000 for the cubed number of
variables times covariance matrices, 50 terms and 300 effects of covariates.

What a file could still tell:

- One who knows the labels of all other patients of a site can weigh whether a certain patient is
  among them: each count that the patient moves changes what is written with the probability
  1/min_count, and a patient stands in M·(M + 1)/2 cells of a labels file. Cells that count nearly
  the same patients share their draw, so that what they tell does not add up, and with more than
  five models the unit grows with their number (`font.exchange.privacy.label_unit`). What remains
  is, for a simulated site of 500 with models that err in 5 % and min_count 11, a mean area under
  the curve of such a test of 0.54 from one model, 0.69 from four and 0.77 from twenty (0.94 if the
  unit stayed 11). Patients whom the models label differently are exposed most, and few models per
  site protect better than many.
- Means and centres rest on at least min_count patients; who knows all but one of them can work out
  that one's value to the written precision times their number.
- Sums of several steps count nearly the same patients. All steps use one draw for each cell, and
  one draw for all cells that rest on few patients, so that a patient whom a model singles out shows
  in 1 of min_count cases, at all steps together. A site answers a shared model only if its own sums
  are part of it.
- Two studies, or two rounds, of the same patients are two draws. The ledger of `mmlca.Hospital`
  keeps one draw for each study and round; it cannot know what leaves by other ways.
"""
