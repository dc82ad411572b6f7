"""Exchange files: what may leave a site, how it is written, checked and explained."""
