"""Hospitals and a centre over Flower: the same round as with files.

On every machine, run pip install 'mmlca[federated]'. At the centre:

    flower-superlink --ssl-certfile … --ssl-keyfile … --ssl-ca-certfile … \
        --disable-runtime-dependency-installation
    flwr run . centre --stream        # when the hospitals are connected

where FLWR_HOME/config.toml defines `centre`:

    [superlink.centre]
    address = "centre.example:8000"
    root-certificates = "ca.crt"

At each hospital, whose study file names its records and the smallest count that may be shown:

    flower-supernode --superlink centre.example:8000 --root-certificates ca.crt \
        --node-config 'study="/home/study/study.toml" site="north" folder="/home/study/out"'

`folder` gets a copy of everything that leaves, and `clusters.csv`, which does not. README.md says
how the centre lets only known machines connect, and how files are signed. To try it on one
machine (with 'flwr[simulation]'): start `flower-superlink --insecure --simulation`, set
`insecure = true` in config.toml, and add to `flwr run` the options
--federation-config 'num-supernodes=3' --run-config 'simulated="/home/study/study.toml"'.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context

import mmlca
from font.exchange.flower import client_app, server_app


def hospital(context: Context) -> mmlca.Hospital:
    """This site, from the configuration of its own SuperNode."""
    node, run = context.node_config, context.run_config
    if "site" in node:
        return mmlca.Hospital.from_study(
            str(node["study"]), str(node["site"]), folder=Path(str(node["folder"]))
        )
    # a simulation: all sites on one machine
    site = str(run["sites"]).split(",")[int(node["partition-id"])]
    study = Path(str(run["simulated"]))
    return mmlca.Hospital.from_study(study, site, folder=study.parent / "simulated" / site)


hospitals = client_app(hospital)
centre = server_app()
