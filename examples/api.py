"""farflung from Python: a plan, a callback that hears every event, and the run in your hands at the end.

    python examples/api.py [KEY=VALUE ...]         for example: python examples/api.py rounds=6 sync.steps=5

Runs go below FARFLUNG_RUNS, or `runs` in the current folder.
"""

import sys

import farflung
from farflung.core.events import AnyEvent, LeasePaymentEvent, RoundEndEvent


def show(event: AnyEvent) -> None:
    """Called in the order in which things happen; slow work in here delays the run."""
    match event:
        case RoundEndEvent():
            print(f"round {event.round + 1} of {event.rounds}: loss {event.loss:.3f}")
        case LeasePaymentEvent():
            print(f"{event.peer[:8]} earned {event.paid} pico-credits for {event.units} tokens")


def main() -> None:
    """Trains the tiny preset, with what the command line changes."""
    changes: dict[str, object] = dict(word.split("=", 1) for word in sys.argv[1:])
    plan = farflung.plan(preset="tiny", set=changes)
    print(f"planned: {plan.sync_bytes} bytes of sync traffic, at most {plan.price} pico-credits")

    run = farflung.run(preset="tiny", set=changes, callbacks=[show])

    print(run.metrics)  # pandas.DataFrame(run.metrics) takes it as it is
    model = run.model()  # a torch.nn.Module, with the weights that were handed over
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters} parameters, validation loss {run.result.loss:.3f} nats/token")
    print(f"it writes: {run.sample('def ', tokens=20)!r}")
    print(f"paid {run.result.paid}, refunded {run.result.refunded}, sum {run.result.sum}")
    found = run.verify()  # recomputes the run from its log; raises at the first thing that is not true
    print(f"recomputed: {found.merges} merges, {found.signatures} signatures, model {found.model_hash[:16]}")
    print(f"again later: farflung.load({run.name!r})")


if __name__ == "__main__":
    main()
