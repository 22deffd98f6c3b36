"""Torch's time ÷ mk's against the rows of A, a dot for each shape. Needs neither torch nor a GPU."""

import math
from xml.sax.saxutils import escape

import shapes
import summary

LEFT, TOP, WIDTH, HEIGHT, RIGHT, BELOW = 56, 56, 600, 320, 16, 44
LOW, HIGH = 0.5, 2.0  # ratios; those beyond lie at the edge
OURS, PEERS = "#1f6f43", "#dd8452"
LINES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)


def svg(result):
    """The picture as text, or None where no row was compared."""
    rows = [(row, ratio) for row in result["rows"] if (ratio := summary.ratio(row)) is not None]
    if not rows:
        return None
    body = []
    for ratio in LINES:
        y = _y(ratio)
        colour, wide = ("#333", 1.5) if ratio == 1.0 else ("#ddd", 1)
        body.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + WIDTH}" y2="{y:.1f}" stroke="{colour}" stroke-width="{wide}"/>')
        body.append(_text(LEFT - 8, y + 4, f"{ratio:g}", "end", 11))
    for m in (1, 4, 16, 64, 256, 1024, 4096, 16384):
        body.append(_text(_x(m), TOP + HEIGHT + 18, str(m), "middle", 11))
    body.append(_text(LEFT + WIDTH / 2, TOP + HEIGHT + 36, "rows", "middle", 11))
    for row, ratio in rows:
        settings = next(r["settings"] for r in row["results"] if r["name"] == "mk") or {}
        chosen = " ".join(f"{name}={value}" for name, value in settings.get("settings", {}).items())
        title = escape(f"{row['shape']}: {ratio:.2f}; {chosen}")
        colour = OURS if ratio >= 1 else PEERS
        body.append(
            f'<circle cx="{_x(row["m"]):.1f}" cy="{_y(ratio):.1f}" r="4" fill="{colour}" fill-opacity=".75"><title>{title}</title></circle>'
        )
    f = summary.figures(result["rows"])
    gpu, date = result["machine"]["gpu"], result["date"]
    head = f"{result['op']}, {len(rows)} random shapes, seed {result['seed']}: torch ÷ mk, mean {f['mean']:.3f}"
    where = f"{gpu}, {date}; higher is faster"
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BELOW
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            _text(LEFT, 22, head, size=15),
            _text(LEFT, 40, where, size=11),
            *body,
            "</svg>\n",
        ]
    )


def _x(m):
    least, most = shapes.ROWS
    return LEFT + WIDTH * math.log(m / least) / math.log(most / least)


def _y(ratio):
    inside = min(HIGH, max(LOW, ratio))
    return TOP + HEIGHT * math.log(HIGH / inside) / math.log(HIGH / LOW)


def _text(x, y, text, anchor="start", size=13):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
