"""What was measured of the layers of a model, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from phnn.conversion.calibration import Calibration
from phnn.conversion.candidates import Candidate, Family
from phnn.conversion.sites import Site

__all__ = ["Cache"]

VERSION = 3  # of the candidates


class Cache:
    """A file with the candidates of a model and its calibration data."""

    def __init__(
        self,
        folder: Path,
        sites: Sequence[Site],
        calibration: Calibration | None,
        family: Family,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        digest = sha256(f"{VERSION}{family}".encode())
        for site in sites:
            digest.update(f"{site.name}{tuple(site.weight.shape)}".encode())
            digest.update(site.weight.detach().float().cpu().contiguous().numpy().tobytes())
        digest.update(b"" if calibration is None else calibration.digest().encode())
        self.path = folder / f"candidates-{digest.hexdigest()[:16]}.json"

    def read(self) -> dict[str, list[Candidate]]:
        """Return what was kept; nothing where the file is missing or damaged."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            return {
                name: [Candidate.from_dict(fields) for fields in found]
                for name, found in kept.items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}

    def write(self, candidates: Mapping[str, Sequence[Candidate]]) -> None:
        """Keep the candidates; the file is whole at any time."""
        text = json.dumps({name: [c.to_dict() for c in cs] for name, cs in candidates.items()})
        temporary = self.path.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        with temporary.open("x", encoding="utf-8") as file:  # never through a link
            file.write(text)
        temporary.replace(self.path)
