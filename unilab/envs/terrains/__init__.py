"""Procedurally generated ground: tiles of growing difficulty in one height field."""

from unilab.envs.terrains.generator import GeneratedTerrain as GeneratedTerrain
from unilab.envs.terrains.generator import TerrainGeneratorCfg as TerrainGeneratorCfg
from unilab.envs.terrains.sub_terrains import HfGapTerrainCfg as HfGapTerrainCfg
from unilab.envs.terrains.sub_terrains import (
    HfPyramidSlopedTerrainCfg as HfPyramidSlopedTerrainCfg,
)
from unilab.envs.terrains.sub_terrains import HfPyramidStairsTerrainCfg as HfPyramidStairsTerrainCfg
from unilab.envs.terrains.sub_terrains import HfRandomUniformTerrainCfg as HfRandomUniformTerrainCfg
from unilab.envs.terrains.sub_terrains import (
    HfSteppingStonesTerrainCfg as HfSteppingStonesTerrainCfg,
)
from unilab.envs.terrains.sub_terrains import SubTerrainCfg as SubTerrainCfg
from unilab.envs.terrains.sub_terrains import Tile as Tile
from unilab.envs.terrains.terrain import Terrain as Terrain
from unilab.envs.terrains.terrain import check_ground as check_ground
