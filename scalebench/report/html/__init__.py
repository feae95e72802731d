"""The report as one page that needs no server, no network and no other file."""
