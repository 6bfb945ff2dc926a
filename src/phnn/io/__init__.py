"""Models in files: saved, loaded, inspected and exported."""

from phnn.io.adapters import LoraFile, export_lora, load_adapter, save_adapter
from phnn.io.atomic import check_output, replacing
from phnn.io.container import ModelFileError, read_sealed, write_tensors
from phnn.io.exporting import Exported, export
from phnn.io.inspection import Inspection, inspect
from phnn.io.loading import load
from phnn.io.saving import save
from phnn.runtimes import ExportError

__all__ = [
    "ExportError",
    "Exported",
    "Inspection",
    "LoraFile",
    "ModelFileError",
    "check_output",
    "export",
    "export_lora",
    "inspect",
    "load",
    "load_adapter",
    "read_sealed",
    "replacing",
    "save",
    "save_adapter",
    "write_tensors",
]
