#!/usr/bin/env python3
"""The loss curve as SVG: plot.py loss.jsonl GZIP_BITS OUT.svg"""

import json
import sys

rows = [json.loads(line) for line in open(sys.argv[1])]
gzip = float(sys.argv[2])
width, height, left, top = 640, 320, 50, 30
most = max(row["tokens"] for row in rows) or 1
x = lambda tokens: left + (width - left - 20) * tokens / most
y = lambda bits: top + (height - top - 50) * (1 - (bits - 1.5) / 2.5)
points = " ".join(f'{x(row["tokens"]):.1f},{y(row["heldout_bits_per_byte"]):.1f}' for row in rows if row["heldout_bits_per_byte"] <= 4)
parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
    '<rect width="100%" height="100%" fill="#fff"/>',
    f'<text x="{left}" y="18">held-out bits a byte over tokens trained on</text>',
    f'<polyline points="{points}" fill="none" stroke="#4477aa" stroke-width="2"/>',
    f'<line x1="{left}" x2="{width - 20}" y1="{y(gzip)}" y2="{y(gzip)}" stroke="#ee6677" stroke-dasharray="5 4"/>',
    f'<text x="{width - 150}" y="{y(gzip) - 6}" fill="#ee6677">gzip -9: {gzip}</text>',
]
for bits in (1.5, 2, 2.5, 3, 3.5, 4):
    parts.append(f'<text x="{left - 8}" y="{y(bits) + 4}" text-anchor="end">{bits}</text><line x1="{left}" x2="{width - 20}" y1="{y(bits)}" y2="{y(bits)}" stroke="#eee"/>')
for part in range(5):
    parts.append(f'<text x="{x(most * part / 4)}" y="{height - 25}" text-anchor="middle">{most * part / 4 / 1e6:.2f} M</text>')
open(sys.argv[3], "w").write("\n".join(parts + ["</svg>", ""]))
