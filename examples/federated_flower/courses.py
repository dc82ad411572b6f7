"""Hospitals and a centre over Flower: the same round as with files, down to the report.

On every machine, run pip install 'mmlca[federated]'. At the centre:

    flower-superlink --ssl-certfile … --ssl-keyfile … --ssl-ca-certfile … \
        --disable-runtime-dependency-installation
    flwr run . centre --stream        # when the hospitals are connected

where FLWR_HOME/config.toml defines `centre`:

    [superlink.centre]
    address = "centre.example:8000"
    root-certificates = "ca.crt"

and `study` in pyproject.toml (or --run-config 'study="/home/centre/study.toml"') names the study
file that all sites have agreed on: sites, classes, ensemble, refinement, privacy, public keys. The
folder `out` gets what came in, the ensemble, and the report in `report/report.html`.

At each hospital, which has the same study file, and its own file that never travels (site.toml):

    flower-supernode --superlink centre.example:8000 --root-certificates ca.crt \
        --node-config 'study="study.toml" own="site.toml" folder="out"'

`folder` gets a copy of everything that leaves, and `clusters.csv`, which does not. README.md says
how the centre lets only known machines connect, and how files are signed. To try it on one
machine (with 'flwr[simulation]'), with a study file that names the sequences or records of every
site: start `flower-superlink --insecure --simulation`, set `insecure = true` in config.toml, and
add to `flwr run` the option --federation-config 'num-supernodes=3'.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context

import mmlca
from font.exchange.flower import client_app
from mmlca.federation.centre_run import flower_centre
from mmlca.study.study_file import read_network_study


def hospital(context: Context) -> mmlca.Hospital:
    """This site, from the configuration of its own SuperNode."""
    node, run = context.node_config, context.run_config
    if "folder" in node:
        own, site = node.get("own"), node.get("site")
        return mmlca.Hospital.from_study(
            str(node["study"]),
            None if site is None else str(site),
            site_file=None if own is None else str(own),
            folder=Path(str(node["folder"])),
            fewer_classes=True,
        )
    # a simulation: all sites on one machine
    study = Path(str(run["study"]))
    site = list(read_network_study(study).sites)[int(node["partition-id"])]
    home = study.parent / "simulated" / site
    return mmlca.Hospital.from_study(study, site, folder=home, fewer_classes=True)


hospitals = client_app(hospital)
centre = flower_centre()
