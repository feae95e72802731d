"""A report as Markdown, as golden files hold it: figures of charts are in their details."""

from html import escape as escape_tags

from scalebench.core.untrusted import clean_line
from scalebench.report import document as doc
from scalebench.report.markdown import escape, escape_paragraph, fence, make_table, render_table

WARNING = "> [!WARNING]\n> "


def render_document(sections, runs):
    parts = [f"# scalebench: {runs:,} {'run' if runs == 1 else 'runs'}"]
    for section in sections:
        parts += [f"## {escape(section.title)}", *(part for block in section.blocks for part in render_block(block))]
    return "\n\n".join(parts) + "\n"


def render_block(block):
    """Yield the paragraphs of a block."""
    if isinstance(block, doc.Paragraph):
        if block.kind in ("heading", "label"):
            yield f"### {escape(block.text)}"
        elif text := escape_paragraph(block.text):
            yield f"**{text}**" if block.kind == "answer" else WARNING * (block.kind == "warning") + text
    elif isinstance(block, doc.Verdict):
        yield from render_verdict(block)
    elif isinstance(block, doc.Code):
        is_log = block.language == "log"
        code = fence(block.text, "text" if is_log else block.language)
        if is_log:
            title = escape_tags(clean_line(block.title or "log"), quote=False)
            yield f"<details><summary>{title}</summary>\n\n{code}\n\n</details>"
        else:
            yield from [f"{escape_paragraph(block.title)}:", code] if block.title else [code]
    else:
        yield f"### {escape(block.title)}"
        yield from [render_table(block)] if isinstance(block, doc.Table) else []
        yield from [escape_paragraph(block.caption)] if block.caption else []
        if isinstance(block, doc.Table) and block.footnotes:
            yield "\n".join(f"- {escape(mark)}: {escape(text)}" for mark, text in block.footnotes)


def render_verdict(block):
    if block.group:
        yield f"### {escape(block.group)}"
    if block.doubts:
        yield WARNING + escape_paragraph(f"Low confidence: {'; '.join(block.doubts)}.")
    yield f"**{escape_paragraph(block.text)}**"
    tiles = []
    for tile in block.tiles:
        value = (tile.figure, tile.unit, tile.interval and f"({tile.interval})")
        tiles.append([escape(text) for text in (tile.name, " ".join(filter(None, value)), tile.note)])
    if tiles:
        yield make_table(["figure", "value (95 %)", "of"], tiles, [False, False, False])
    if block.reason:
        yield escape_paragraph(block.reason)
