"""The messages that sites and centre exchange, one module for each.

A module holds the fields of its message, what writes and reads it, the rules that its numbers have
to fit, what it says and reveals in plain words, and its specification (the module's docstring).
`font.exchange.registry` lists them all.
"""
