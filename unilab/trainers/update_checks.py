"""Checks of an update: networks keep the parameters that are trained (C9), losses are finite."""

from __future__ import annotations

from torch import Tensor, nn

from unilab.errors import ActorContractError, NonFiniteError


class TrainedParameters:
    """The parameters of networks when their optimizers were made (ADR-0017 C9).

    Args:
        networks: by the name that errors have.
    """

    def __init__(self, **networks: nn.Module) -> None:
        self._networks = networks
        self._trained = {
            name: {id(p) for p in network.parameters()} for name, network in networks.items()
        }
        # Where the networks keep their parts: compared before each update, in microseconds.
        self._slots = [
            slot
            for network in networks.values()
            for module in network.modules()
            for slot in (module._parameters, module._modules)
        ]
        self._parts = self._in_slots()

    def check(self, update_count: int) -> None:
        """Raise if a parameter was replaced, added or removed before this update."""
        if self._in_slots() == self._parts:
            return
        for name, network in self._networks.items():
            trained = self._trained[name]
            new = [key for key, p in network.named_parameters() if id(p) not in trained]
            if new or len([*network.parameters()]) != len(trained):
                raise ActorContractError(
                    f"parameters of the {name} must stay those that its optimizer trains (ADR-0017 "
                    f"C9), but before update {update_count} "
                    f"{', '.join(new) or 'some'} were replaced or removed: change parameters in "
                    "place under torch.no_grad(), or make a learner of the new network"
                )
        self._parts = self._in_slots()  # parts without parameters came or went

    def _in_slots(self) -> list[int]:
        return [id(part) for slot in self._slots for part in slot.values()]


def check_losses(update_count: int, **losses: Tensor) -> None:
    """Raise if a loss is not finite, before it moves a parameter (ADR-0017 C15).

    Called after ``sync_gradients``, or the other ranks would wait for this one.

    On an accelerator, where a look at the values would wait for the device, non-finite ones are
    left to the reader of the metrics.
    """
    for name, value in losses.items():
        if value.device.type == "cpu" and not value.isfinite().all():
            raise NonFiniteError(
                f"{name} is {value.item()} in update {update_count}: look for NaN or huge numbers "
                "in the batch, or for a division or a logarithm in the actor"
            )
