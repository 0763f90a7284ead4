"""What a process takes of the machine."""

import re
from pathlib import Path

_RSS = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


def resident_bytes(pid: int) -> int:
    """Of its memory; 0 where it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = _RSS.search(text)
    return int(found[1]) * 1024 if found else 0


def open_sockets(pid: int) -> int:
    """How many it has open; 0 where it has ended."""
    found = 0
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            found += _leads_to_socket(link)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return found


def _leads_to_socket(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("socket:")
    except FileNotFoundError:  # closed while we looked
        return False
