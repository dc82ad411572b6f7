"""Three hospitals and a centre in four folders; copying files stands for the e-mails between them.

Every turn is one call, `run_site` at a hospital and `run_centre` at the centre, as the commands
`mmlca site run` and `mmlca centre run` make it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import mmlca
from mmlca.federation.centre_run import run_centre
from mmlca.federation.site_run import run_site

PATIENTS = {"north": 900, "south": 700, "west": 300}
truth = mmlca.MarkovParams(
    weights=[0.7, 0.3],
    initial=[[0.95, 0.04, 0.01], [0.80, 0.15, 0.05]],
    transition=[
        [[0.98, 0.01, 0.01], [0.30, 0.65, 0.05], [0.30, 0.05, 0.65]],
        [[0.65, 0.25, 0.10], [0.05, 0.90, 0.05], [0.05, 0.10, 0.85]],
    ],
)

with tempfile.TemporaryDirectory() as name:
    root = Path(name)
    study = root / "study.toml"  # what all agree on; `mmlca study init --network` writes one
    study.write_text(
        'name = "switching"\n[classes]\nnumber = 2\n[pseudo_sites]\nper_site = 0\n'
        '[ensemble]\nmethod = "latent"\nrefine = "none"\n'
        "[inference]\ndiagnostics = false\n[outputs]\nfigures = false\n"  # for a quick report
        + "".join(f"[sites.{site}]\n" for site in PATIENTS)
    )
    for site, n in PATIENTS.items():
        data, _ = mmlca.simulate(truth, n, 16, states=["TNFi", "CTLA4-Ig", "JAK"], seed=n)
        (root / site).mkdir()
        data.write(root / site / "sequences.csv")
        (root / site / "site.toml").write_text(f'site = "{site}"\nsequences = "sequences.csv"\n')

    while True:
        for site in PATIENTS:
            turn = run_site(study, root / site / "site.toml", root / site)
            print(f"{site}: {' '.join(turn.done)} Sends {[path.name for path in turn.leaving]}.")
            shutil.copytree(root / site / "outbox", root / "centre/inbox", dirs_exist_ok=True)
        end = run_centre(study, root / "centre")
        print(f"centre: sends {end.send}, waits for {sorted(end.missing)}.\n")
        if end.result is not None:
            break
        for site in PATIENTS:
            shutil.copytree(root / "centre/outbox", root / site / "inbox", dirs_exist_ok=True)
    print(end.result.report)
