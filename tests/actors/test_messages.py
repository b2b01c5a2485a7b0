"""The messages that every actor knows: an error comes out as what went in."""

from __future__ import annotations

import pytest

from dps import errors
from dps.actors.answers import Failed
from dps.actors.ref import Ref
from dps.errors import Aborted, RemoteError

KNOWN = [
    errors.DeadlineExceeded, errors.TaskLost, errors.Unavailable, errors.Aborted, errors.Cancelled,
    errors.ProtocolError, errors.NotAuthenticated, errors.CheckpointError, errors.PlacementError, errors.ConfigError,
    ValueError, TypeError,
]  # fmt: skip


@pytest.mark.parametrize("cls", KNOWN)
def test_an_error_of_ours_comes_out_of_its_class_with_its_text_and_who_answered(cls: type[Exception]) -> None:
    raised = Failed.of(cls("what was got, what was wanted"), "ps:1").exception()
    assert type(raised) is cls and str(raised) == "what was got, what was wanted"
    assert raised.__notes__ == ["answered by ps:1"]


def test_a_class_of_its_own_comes_out_as_the_nearest_one_that_is_known() -> None:
    class Gone(Aborted):
        pass

    assert type(Failed.of(Gone("over"), "ps:1").exception()) is Aborted


def test_any_other_error_is_a_remote_error_with_task_and_traceback() -> None:
    raised = Failed.of(ZeroDivisionError("division by zero"), "ps:1", "Traceback ...").exception()
    assert isinstance(raised, RemoteError)
    assert str(raised) == "ZeroDivisionError: division by zero (on ps:1)"
    assert (raised.task, raised.remote_traceback) == ("ps:1", "Traceback ...")


def test_a_ref_reads_as_a_name_and_a_place() -> None:
    assert str(Ref("127.0.0.1:2222", "ps")) == "ps at 127.0.0.1:2222"
