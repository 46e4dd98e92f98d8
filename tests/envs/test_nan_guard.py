"""The NaN guard, and terminations of rows that diverge."""

import pytest
import torch
from envs.tables import act, drive, go2, twins, twins_cfg

from unilab import cli
from unilab.envs import NanGuardCfg, TerminationTermCfg, mdp
from unilab.envs.nan_guard import load_dump, replay_dump
from unilab.errors import ConfigError, NonFiniteError


def guarded(folder, **changes):
    guard = NanGuardCfg(output_dir=str(folder / "dumps"), buffer_size=6, max_envs_to_dump=2)
    return twins(folder, 8, nan_guard=guard, **changes)


def fail(env, rows, value=torch.nan):
    """Let physics diverge in some rows."""
    root = act(env, env.reset(), 0.4)
    for _ in range(3):
        env.step(root)
    env.backend.get_state_views()["qvel"][rows] = value
    with pytest.raises(NonFiniteError) as caught:
        env.step(root)
    return caught.value


def test_the_error_names_its_rows_and_the_file_that_explains_it(tmp_path):
    error = fail(guarded(tmp_path), [1, 4, 6])
    assert error.rows == [1, 4, 6]
    path = tmp_path / "dumps" / "nan_dump_3.pt"
    assert f"unilab replay-dump {path}" in error.__notes__[-1]
    assert [p.name for p in path.parent.iterdir()] == ["nan_dump_3.pt"]


def test_a_dump_holds_the_last_states_of_the_first_bad_rows(tmp_path):
    env = guarded(tmp_path)
    drive(env, 10)
    fail(env, [2, 3, 7])
    dump = load_dump(tmp_path / "dumps" / "nan_dump_13.pt")
    assert dump["rows"] == [2, 3]
    assert dump["states"].shape[:2] == dump["ctrls"].shape[:2] == (6, 2)
    torch.testing.assert_close(dump["actions"][-4:], torch.full((4, 2, 2), 0.4))
    torch.testing.assert_close(dump["ctrls"][-4:], torch.full((4, 2, 2), 0.2))
    assert len(dump["models"]) == 2
    assert (dump["seed"], dump["backend"]) == (0, "MujocoBackend")


def test_a_later_dump_does_not_replace_an_earlier_one(tmp_path):
    for _ in range(3):
        error = fail(guarded(tmp_path), [5])
    files = sorted(path.name for path in (tmp_path / "dumps").iterdir())
    assert files == ["nan_dump_3.pt", "nan_dump_3_2.pt", "nan_dump_3_3.pt"]
    assert "nan_dump_3_3.pt" in error.__notes__[-1]


def test_a_replay_ends_in_the_same_failure(tmp_path, capsys):
    fail(guarded(tmp_path), [5])
    path = tmp_path / "dumps" / "nan_dump_3.pt"
    report = replay_dump(path).report.splitlines()
    assert report[0].startswith("after 3 control steps with seed 0: ")
    assert report[1].startswith("row 5: physics is not finite after the last step, the same as")
    assert cli.main(["replay-dump", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == report
    dump = load_dump(path)
    dump["ctrls"][-1] += 1.0
    torch.save(dump, path)
    assert cli.main(["replay-dump", str(path)]) == 1
    assert "NOT the same as then" in capsys.readouterr().out


def test_a_guard_does_not_change_the_rollout(tmp_path):
    env, plain = guarded(tmp_path), twins(tmp_path, 8)
    assert torch.equal(drive(env, 8)["next", "obs"], drive(plain, 8)["next", "obs"])


def test_a_file_that_is_no_dump_is_refused(tmp_path, capsys):
    path = tmp_path / "other.pt"
    with pytest.raises(ConfigError, match=str(path)):
        replay_dump(path)
    for content in ([1], torch.nn.Linear(1, 1), {"version": 7}):
        torch.save(content, path)
        with pytest.raises(ConfigError, match=str(path)):
            replay_dump(path)
    assert cli.main(["replay-dump", str(path)]) == 2
    assert "version" in capsys.readouterr().err


LOST = {"lost": TerminationTermCfg(func=mdp.nan_detection)}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_task_may_lose_a_row_that_diverges(tmp_path, value):
    env = twins(tmp_path, terminations={**twins_cfg(tmp_path).terminations, **LOST})
    root = act(env, env.reset())
    env.backend.get_state_views()["qvel"][2] = value
    data, root = env.step_and_maybe_reset(root)
    assert data["next", "terminated"][:, 0].tolist() == [False, False, True, False]
    for td in (data, root):
        for tensor in td.values(True, True):
            assert tensor.isfinite().all()
    for _ in range(3):
        data, root = env.step_and_maybe_reset(act(env, root))
        assert not data["next", "done"].any()
    env.reset()
    assert env.drain_metrics()["Episode_Termination/lost"] == 0.2


def test_the_first_rows_that_are_lost_are_dumped_and_the_run_continues(tmp_path, caplog):
    env = guarded(tmp_path, terminations={**twins_cfg(tmp_path).terminations, **LOST})
    root = env.reset()
    for _ in range(3):
        _, root = env.step_and_maybe_reset(act(env, root, 0.4))
        env.backend.get_state_views()["qvel"][5] = torch.nan
    path = tmp_path / "dumps" / "nan_dump_1.pt"
    assert list(path.parent.iterdir()) == [path]
    assert f"unilab replay-dump {path}" in caplog.text
    replay = replay_dump(path)
    assert replay.same
    assert "row 5: physics is not finite after the last step, the same" in replay.report


def test_a_lost_row_ends_for_no_other_reason():
    """A robot of zeros would lie too low, and time may run out in the same step."""
    env = go2(4, terminations={**go2().cfg.terminations, **LOST})
    root = act(env, env.reset())
    env.episode_length[1] = env.max_episode_length - 1
    env.backend.get_state_views()["qpos"][1, 9] = torch.nan
    data = env.step(root)["next"]
    assert env.episode_so_far(1)[1] == ["lost"]
    assert data["terminated"][1]
    assert not data["truncated"][1]
    sound = go2(4)
    others, kept = sound.step(act(sound, sound.reset()))["next"], [0, 2, 3]
    for key in ("critic", "reward"):  # other rows do not notice
        assert torch.equal(data[key][kept], others[key][kept])
