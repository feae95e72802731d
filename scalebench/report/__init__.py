"""Reports: figures of finished runs as terminal text, tables, Markdown, charts and one HTML page."""
