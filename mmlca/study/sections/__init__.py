"""The sections of the report, one module each; `registry` lists them in the order of the page."""
