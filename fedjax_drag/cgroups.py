"""The control groups (version 2) of this process, which limit its memory and its processors."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OF_PROCESS = Path("/proc/self/cgroup")


def own_groups() -> list[Path]:
    """Folders of the groups that this process belongs to, the innermost first; none where there are no such groups."""
    try:
        own = next(line[3:] for line in OF_PROCESS.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = ROOT / own.strip("/")
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(ROOT)]
