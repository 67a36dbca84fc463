"""Control groups: v1, v2, both, none; bounds written, joined, counted, removed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from farflung.core.io.process_mark import namespace, own_mark
from farflung.host.io import cgroup
from farflung.host.io.cgroup import CgroupRoot
from farflung.host.worker_limits import MIB, WorkerLimits

LIMITS = WorkerLimits(data=100 * MIB, disk_bytes=MIB, threads=30, cores=2)


def tables(proc: Path, groups: str, mounts: str) -> Path:
    (proc / "cgroup").write_text(groups)
    (proc / "mountinfo").write_text(mounts)
    return proc


def mount(kind: str, where: Path, options: str, root: str = "/") -> str:
    return f"31 30 0:28 {root} {where} rw,relatime shared:9 - {kind} {kind} rw,{options}\n"


def test_v1_has_a_place_in_each_controllers_hierarchy(tmp_path: Path) -> None:
    mounts = mount("cgroup", tmp_path / "m", "memory") + mount("cgroup", tmp_path / "c", "cpu,cpuacct")
    found = cgroup.cgroup_roots(tables(tmp_path, "4:memory:/a/b\n2:cpu,cpuacct:/\n1:name=systemd:/x\n", mounts))
    assert found == [
        CgroupRoot(1, tmp_path / "m" / "a" / "b", ("memory",)),
        CgroupRoot(1, tmp_path / "c", ("cpu", "cpuacct")),
    ]


def test_v2_has_a_place_below_or_beside_our_own(tmp_path: Path) -> None:
    own = tmp_path / "top" / "user" / "mine"
    own.mkdir(parents=True)
    for folder in (own, own.parent):
        (folder / "cgroup.controllers").write_text("cpu io memory pids")
        (folder / "cgroup.subtree_control").write_text("cpu memory pids")
    proc = tables(tmp_path, "0::/user/mine\n", mount("cgroup2", tmp_path / "top", "nsdelegate"))
    assert cgroup.cgroup_roots(proc) == [CgroupRoot(2, own, ("memory", "pids", "cpu"))]
    (own / "cgroup.subtree_control").unlink()
    (own / "cgroup.subtree_control").mkdir()  # cannot be written: the group holds processes
    assert cgroup.cgroup_roots(proc) == [CgroupRoot(2, own.parent, ("memory", "pids", "cpu"))]
    (own.parent / "cgroup.subtree_control").write_text("pids")
    (own.parent / "cgroup.controllers").write_text("pids")
    assert cgroup.cgroup_roots(proc) == [CgroupRoot(2, own.parent, ("pids",))]


def test_hybrid_takes_v1_where_v2_has_no_controllers(tmp_path: Path) -> None:
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("hugetlb")
    mounts = mount("cgroup", tmp_path / "pids", "pids") + mount("cgroup2", tmp_path / "unified", "")
    assert cgroup.cgroup_roots(tables(tmp_path, "8:pids:/\n0::/\n", mounts)) == [
        CgroupRoot(1, tmp_path / "pids", ("pids",))
    ]


def test_a_container_sees_its_part_of_the_hierarchy(tmp_path: Path) -> None:
    mounts = mount("cgroup", tmp_path, "pids", root="/docker/abc")
    assert cgroup.cgroup_roots(tables(tmp_path, "8:pids:/docker/abc/inner\n", mounts))[0].folder == tmp_path / "inner"
    assert cgroup.cgroup_roots(tables(tmp_path, "8:pids:/docker/abc\n", mounts))[0].folder == tmp_path
    assert cgroup.cgroup_roots(tables(tmp_path, "8:pids:/elsewhere\n", mounts)) == []


def test_without_control_groups_there_is_no_group(tmp_path: Path) -> None:
    assert cgroup.cgroup_roots(tmp_path / "none") == []
    assert cgroup.create(LIMITS, []) is None
    assert cgroup.create(LIMITS, [CgroupRoot(1, tmp_path / "not there", ("pids",))]) is None


@pytest.mark.parametrize(
    ("version", "bounds"),
    [
        (2, {"memory.max": 101 * MIB, "memory.swap.max": 0, "pids.max": 30, "cpu.max": "210000 100000"}),
        (
            1,
            {
                "memory.limit_in_bytes": 101 * MIB,
                "pids.max": 30,
                "cpu.cfs_quota_us": 210000,
                "cpu.cfs_period_us": 100000,
            },
        ),
    ],
)
def test_bounds_are_written_in_the_kernels_words(tmp_path: Path, version: int, bounds: dict[str, object]) -> None:
    group = cgroup.create(LIMITS, [CgroupRoot(version, tmp_path, cgroup.CONTROLLERS)])
    assert group is not None
    assert group.controllers == set(cgroup.CONTROLLERS)
    (folder,) = tmp_path.iterdir()
    assert {name: (folder / name).read_text() for name in bounds} == {k: str(v) for k, v in bounds.items()}
    assert group.entrances() == [str(folder / "cgroup.procs")]
    events = "memory.events" if version == 2 else "memory.oom_control"
    assert group.broken() == cgroup.CgroupLimitCounts()
    (folder / events).write_text("oom 1\noom_kill 2\n")
    (folder / "pids.events").write_text("max 3\n")
    assert group.broken() == cgroup.CgroupLimitCounts(memory=True, processes=True)


def test_processor_time_is_read_in_both_units(tmp_path: Path) -> None:
    two = cgroup.WorkerCgroup({tmp_path: CgroupRoot(2, tmp_path, ("cpu",))})
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert two.cpu_seconds() == 2.5
    one = cgroup.WorkerCgroup({tmp_path: CgroupRoot(1, tmp_path, ("cpuacct",))})
    assert one.cpu_seconds() == 0
    (tmp_path / "cpuacct.usage").write_text("1500000000\n")
    assert one.cpu_seconds() == 1.5
    assert one.controllers == frozenset()


def test_groups_of_agents_that_are_gone_are_swept(tmp_path: Path) -> None:
    alive, gone = tmp_path / f"farflung-{own_mark()}-0", tmp_path / f"farflung-{2**30}.{namespace()}-0"
    elsewhere = tmp_path / f"farflung-{2**30}.{namespace() + 1}-0"  # of a container that shares the tree of groups
    for folder in (alive, gone, elsewhere):
        folder.mkdir()
    (tmp_path / "of another program").mkdir()
    cgroup.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {alive.name, elsewhere.name, "of another program"}


def test_a_real_group_holds_what_joins_it_and_ends_it() -> None:
    group = cgroup.create(LIMITS)
    if group is None:
        pytest.skip("this machine gives no control group")
    join = ["/bin/sh", "-c", 'for f; do echo $$ > "$f"; done; echo in; exec sleep 60', "sh", *group.entrances()]
    with subprocess.Popen(join, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        assert group.remove(20.0)
        assert process.wait(100) == -9
    assert group.entrances() == []
