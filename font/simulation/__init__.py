"""The simulation study: FONT and its competitors on simulated sites."""
