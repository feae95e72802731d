import sys, tempfile, time
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
from tests.faults.table import *
from tests.faults.harness import *
pat = sys.argv[1]; n = int(sys.argv[2]) if len(sys.argv) > 2 else 3
rows = [r for r in planned_rows() if __import__("re").fullmatch(pat, str(r))]
print(len(rows), "rows", flush=True)
base = Path(tempfile.mkdtemp(prefix="flt"))
def go(row):
    if (why := missing_requirement(row)): return row, None, why
    o = run_row(row, base / str(rows.index(row)), base / "cache")
    shutil.rmtree(base / str(rows.index(row)), ignore_errors=True)
    print("OK " if not o.problems else "BAD", row, o.status, "|", (o.reason or "")[:90], o.exit_code, o.took_s, flush=True)
    for p in o.problems: print("      ", p, flush=True)
    return row, o, None
with ThreadPoolExecutor(n) as pool: list(pool.map(go, rows))
