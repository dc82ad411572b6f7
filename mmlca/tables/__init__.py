"""Tables: what the sequences of a group look like, and how groups and sites differ."""
