"""Tiers: what is readable, how bubblewrap is called, which gaps are told, and that no tier is weakened silently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.core.errors import PolicyError
from farflung.host import sandbox
from farflung.host.io import launch, sandbox_tiers
from farflung.host.sandbox import SandboxGap, SandboxSupport

WHOLE = SandboxSupport(
    is_root=False, controllers=frozenset({"memory", "pids", "cpu"}), has_memory_folder=True, has_landlock=True
)
BARE = SandboxSupport(is_root=True, controllers=frozenset(), has_memory_folder=False, has_landlock=False)
ALWAYS = {SandboxGap.KERNEL, SandboxGap.MACHINE, SandboxGap.PATHS}
NO_GROUP = {SandboxGap.SHARED_MEMORY, SandboxGap.CORES}


def gaps(name: str, facts: SandboxSupport) -> set[str]:
    return set(sandbox.tier(name, facts).gaps)


def test_a_weaker_tier_never_has_fewer_gaps() -> None:
    for facts in (WHOLE, BARE):
        strong, middle, weak = (gaps(name, facts) for name in sandbox.ORDER)
        assert strong - {SandboxGap.SYSTEM_FILES} < middle  # without Landlock there is no middle
        assert strong - {SandboxGap.THREADS} < weak  # which says FORKS instead
        assert middle - {SandboxGap.METADATA} - weak <= {SandboxGap.THREADS}


def test_gaps_are_those_of_the_machine() -> None:
    assert gaps("bwrap", WHOLE) == ALWAYS
    assert gaps("bwrap", BARE) == {*ALWAYS, SandboxGap.SYSTEM_FILES, SandboxGap.THREADS, *NO_GROUP}
    assert gaps("landlock", WHOLE) == {*ALWAYS, SandboxGap.NAMES, SandboxGap.METADATA, SandboxGap.DISK_WATCHED}
    assert gaps("landlock", BARE) - gaps("landlock", WHOLE) == {SandboxGap.THREADS, SandboxGap.DISK_CLEAR, *NO_GROUP}
    weak = {
        SandboxGap.NAMES,
        SandboxGap.SYSTEM_FILES,
        SandboxGap.FILES,
        SandboxGap.NETWORK,
        SandboxGap.UNIX_SOCKETS,
        SandboxGap.PROCESSES,
        SandboxGap.ORPHANS,
        SandboxGap.DISK_CLEAR,
        SandboxGap.DISK_WATCHED,
    }
    assert gaps("limits", WHOLE) == {*ALWAYS, *weak}
    assert gaps("limits", BARE) == {*ALWAYS, *weak, SandboxGap.FORKS, *NO_GROUP}


def test_the_policy_reads_python_the_package_and_the_system_alone() -> None:
    paths = sandbox.readable(["/home/u/.venv", "/home/u/py/"], "/home/u/site/farflung")
    assert not {"/", "/home", "/home/u", "/home/u/.venv", "/etc", "/root", "/home/u/site"} & set(paths)
    assert {"/home/u/.venv/bin", "/home/u/py/lib", "/home/u/site/farflung", "/usr"} <= set(paths)
    assert [path for path in paths if path.startswith("/etc")] == ["/etc/ld.so.cache"]
    assert len(paths) == len(set(paths))


def test_bubblewrap_is_told_to_share_nothing() -> None:
    links = {"/bin": "usr/bin"}
    line = sandbox.bwrap_options(["/usr", "/bin"], {"HOME": "/scratch"}, 1000, links.get)
    text = " ".join(line)
    for part in (
        "--unshare-all",
        "--unshare-user --uid 65534",
        "--cap-drop ALL",
        "--die-with-parent",
        "--new-session",
        "--clearenv --setenv HOME /scratch",
        "--ro-bind-try /usr /usr",
        "--symlink usr/bin /bin",
        "--size 1000 --tmpfs /scratch",
        "--remount-ro /dev --remount-ro /",
    ):
        assert part in text, part
    assert "--share-net" not in line
    assert "--bind" not in line
    assert text.index("--clearenv") < text.index("--setenv")


def test_only_links_of_the_root_folder_are_links_inside(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    assert launch.link_of(str(tmp_path / "link")) is None
    assert launch.link_of("/usr") is None


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """`why` each tier does not work, as a test wants it."""
    why = dict.fromkeys(sandbox.ORDER, "")
    monkeypatch.setattr(sandbox_tiers, "probe", why.__getitem__)
    monkeypatch.delenv(sandbox_tiers.VARIABLE, raising=False)
    return why


def test_the_strongest_tier_that_works_is_taken(works: dict[str, str]) -> None:
    for name in sandbox.ORDER:
        assert sandbox_tiers.choose().name == name
        works[name] = "broken"
    with pytest.raises(PolicyError) as error:
        sandbox_tiers.choose()
    assert error.value.code == "FF-HOST-005"


def test_a_tier_that_is_named_is_taken_or_refused(works: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sandbox_tiers.VARIABLE, "landlock")
    assert sandbox_tiers.choose().name == "landlock"
    assert sandbox_tiers.choose("limits").name == "limits"
    works["landlock"] = "no Landlock here: Function not implemented"
    with pytest.raises(PolicyError) as impossible:
        sandbox_tiers.choose()
    assert impossible.value.code == "FF-HOST-004"
    assert impossible.value.cause.startswith("no Landlock")
    assert "5.13" in impossible.value.hint
    monkeypatch.setenv(sandbox_tiers.VARIABLE, "docker")
    with pytest.raises(PolicyError) as unknown:
        sandbox_tiers.choose()
    assert unknown.value.code == "FF-HOST-003"
    assert "bwrap, landlock, limits" in unknown.value.cause
    assert unknown.value.hint


@pytest.mark.parametrize(
    ("name", "why", "command"),
    [
        ("bwrap", "bubblewrap is not installed", "apt-get install bubblewrap"),
        ("bwrap", "bwrap: setting up uid map: Permission denied", "apparmor_restrict_unprivileged_userns=0"),
        ("bwrap", "bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
        ("bwrap", "bwrap: Unknown option --size", "--only-upgrade bubblewrap"),
        ("landlock", "Landlock is disabled in this kernel", "lsm=landlock"),
        ("landlock", "no Landlock here", "5.13"),
        ("bwrap", "something else", ""),
    ],
)
def test_what_would_help_is_an_exact_command(name: str, why: str, command: str) -> None:
    told = sandbox.remedy(name, why)
    assert command in told
    assert bool(told) == bool(command)


def test_bubblewrap_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.shutil, "which", lambda *_, **__: None)
    assert sandbox_tiers.probe.__wrapped__("bwrap") == "bubblewrap is not installed"


def test_a_probe_sees_a_missing_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    if sandbox_tiers.probe("landlock"):
        pytest.skip(f"tier landlock does not work here: {sandbox_tiers.probe('landlock')}")
    whole = launch._items
    for rule in ("seccomp=", "write="):
        monkeypatch.setattr(
            launch, "_items", lambda *given, rule=rule: [i for i in whole(*given) if not i.startswith(rule)]
        )
        assert sandbox_tiers.probe.__wrapped__("landlock")


@pytest.mark.parametrize("name", sandbox.ORDER)
def test_a_tier_fails_here_only_for_what_this_machine_lacks(name: str) -> None:
    why = sandbox_tiers.probe(name)
    assert not why or sandbox.remedy(name, why), why
