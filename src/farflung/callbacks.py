"""Re-exports the callbacks and loggers of a run (farflung.app.api.callbacks) under the name that people import."""

from farflung.app.api.callbacks import Callback, State
from farflung.app.api.loggers import MLflow, TensorBoard, WandB

__all__ = ["Callback", "MLflow", "State", "TensorBoard", "WandB"]
