"""MLflow's own store holds a run's figures and its plan, in the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from extras_told import tell

from farflung.callbacks import MLflow

pytestmark = [
    pytest.mark.extra(name="mlflow"),
    pytest.mark.filterwarnings("default"),  # of its own libraries
]


@pytest.fixture
def mlflow() -> Any:
    """MLflow, whose import takes seconds: not while tests are collected."""
    return pytest.importorskip("mlflow", reason="pip install 'farflung[mlflow]'")


def test_a_run_is_in_a_database_of_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow: Any) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tell(tmp_path, MLflow("a-project"))
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("a-project").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params["rounds"]) == ("day-n", "FINISHED", "2")
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in losses] == [(100, 4.5), (200, 3.5)]
    assert [each.value for each in client.get_metric_history(run.info.run_id, "heldout/loss")] == [5.5, 3.25]
