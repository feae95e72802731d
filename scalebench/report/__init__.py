"""Reports: figures of finished runs as terminal text, tables, charts and one HTML page."""
