"""ONNX files of policies, which run without this library."""

from unilab.export.onnx_export import OnnxExport, export_onnx
from unilab.export.onnx_policy import OnnxPolicy

__all__ = ["OnnxExport", "OnnxPolicy", "export_onnx"]
