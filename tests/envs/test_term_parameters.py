"""Terms that take whatever parameters they are given."""

import pytest
import torch
from envs.tables import TWINS, drive, go2, twins

from unilab.envs import ManagerTermBase, RewardTermCfg, mdp, reads
from unilab.errors import ConfigError


def paid(folder, func, **params):
    """The rewards of a step, without the step's length."""
    env = twins(folder, rewards={"term": RewardTermCfg(func=func, weight=1.0, params=params)})
    return drive(env, 1)["next", "reward"][:, 0, 0] / env.step_dt


def summed(env, *args, **summands: float):
    return torch.full((env.num_envs,), float(sum(summands.values())))


@reads("joint_vel")
class Slower(ManagerTermBase):
    """As older terms of mjlab: parameters are taken from the configuration."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.limit, self.joints = cfg.params["limit"], cfg.params["asset_cfg"]

    def __call__(self, env, **kwargs):
        speeds = self.joints.joints_of(env.scene[self.joints.name].data.joint_vel).abs()
        assert kwargs == {"limit": self.limit, "asset_cfg": self.joints}
        return (speeds < self.limit).float().sum(1)


@pytest.mark.parametrize(("given", "total"), [({}, 0.0), ({"a": 1.0, "b": 0.5}, 1.5)])
def test_a_term_with_kwargs_gets_all_that_is_given(tmp_path, given, total):
    torch.testing.assert_close(paid(tmp_path, summed, **given), torch.full((4,), total))


def test_a_class_may_take_its_parameters_when_it_is_made(tmp_path):
    first = type(TWINS)("twins", joint_names="first")
    reward = paid(tmp_path, Slower, limit=100.0, asset_cfg=first)
    torch.testing.assert_close(reward, torch.ones(4))  # of the one joint


def test_what_kwargs_are_annotated_with_holds_for_each(tmp_path):
    with pytest.raises(ConfigError, match=r"^reward term 'term': b"):
        paid(tmp_path, summed, a=1.0, b="much")


TRACKING = [
    mdp.track_lin_vel_xy_exp,
    mdp.track_ang_vel_z_exp,
    mdp.track_lin_vel_xy_yaw_frame_exp,
    mdp.track_ang_vel_z_world_exp,
]


@pytest.mark.parametrize("func", TRACKING)
def test_a_tracking_reward_has_a_width(func):
    bad = RewardTermCfg(func=func, weight=1.0, params={"std": 0.0, "command_name": "base_velocity"})
    with pytest.raises(ConfigError, match=r"^reward term 'bad': std"):
        go2(rewards={"bad": bad})
