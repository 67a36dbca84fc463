"""What a run tells your own code (farflung.app.callbacks), under the name that people import."""

from farflung.app.callbacks import Callback, State
from farflung.app.loggers import TensorBoard, WandB

__all__ = ["Callback", "State", "TensorBoard", "WandB"]
