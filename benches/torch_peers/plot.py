"""One picture per operation: times of mk and its peers as multiples of the bound, a group of bars per row."""

from xml.sax.saxutils import escape

import rows as table

BAR, GAP, GROUP = 16, 4, 18  # heights, in px
LEFT, WIDTH, RIGHT, TOP = 190, 560, 120, 64
OURS, SEPARATE = "#1f6f43", "#8cc0a0"
PEERS = ["#4c72b0", "#dd8452", "#937860", "#8172b3", "#da8bc3", "#64b5cd"]


def svg(result, op, derive):
    """The picture as text, or None where the operation has no row with a bound."""
    groups = []
    for row in result["rows"]:
        found = derive(row)
        if row["op"] == op and found["bound"]:
            bars = [r for r in row["results"] if r["kind"] != "alone"]
            groups.append((row, found["bound"], bars))
    if not groups:
        return None
    most = max((bar["ms"] / bound for _, bound, bars in groups for bar in bars), default=1.0)
    scale = WIDTH / max(most, 1.0)
    colours = _colours(groups)
    body, y = [], TOP
    for row, bound, bars in groups:
        height = len(bars) * (BAR + GAP) - GAP
        body.append(_text(LEFT - 10, y + height / 2 + 5, f"{row['m']} × {row['k']} × {row['n']}", "end"))
        for bar in bars:
            width = bar["ms"] / bound * scale
            title = f"{bar['name']}: {bar['ms']:.4f} ms, {bar['ms'] / bound:.2f} of the bound"
            body.append(
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colours[bar["name"]]}">'
                f"<title>{escape(title)}</title></rect>"
            )
            body.append(_text(LEFT + width + 6, y + BAR - 4, f"{bar['ms'] / bound:.2f}", size=11))
            y += BAR + GAP
        y += GROUP
    bottom = y - GROUP + 8
    at = LEFT + scale
    body.append(f'<line x1="{at:.1f}" y1="{TOP - 10}" x2="{at:.1f}" y2="{bottom}" stroke="#333" stroke-dasharray="4 3"/>')
    body.append(_text(at, TOP - 14, "bound", "middle", 11))
    legend_at, legend = LEFT, []
    for name, colour in colours.items():
        legend.append(f'<rect x="{legend_at}" y="{bottom + 14}" width="12" height="12" fill="{colour}"/>')
        legend.append(_text(legend_at + 17, bottom + 24, name, size=12))
        legend_at += 32 + 7 * len(name)
    title = table.TITLES[op].strip("`")
    where = f"{result['ranks']}× {result['machine']['gpu']}, {result['date']}; time ÷ bound, shorter is faster"
    width, height = max(LEFT + WIDTH + RIGHT, legend_at), bottom + 40
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            _text(LEFT, 22, title, size=15),
            _text(LEFT, 40, where, size=11),
            *body,
            *legend,
            "</svg>\n",
        ]
    )


def _colours(groups):
    """A colour per name, ours first, in the order of appearance."""
    kinds = {}
    for _, _, bars in groups:
        for bar in bars:
            kinds.setdefault(bar["name"], bar["kind"])
    peers = [name for name, kind in kinds.items() if kind == "peer"]
    fixed = {"ours": OURS, "ours, separate kernels": SEPARATE}
    return {name: fixed.get(kind) or PEERS[peers.index(name) % len(PEERS)] for name, kind in kinds.items()}


def _text(x, y, text, anchor="start", size=13):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
