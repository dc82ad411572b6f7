"""Site results: every number of a site that the report needs, and nothing about single patients."""
