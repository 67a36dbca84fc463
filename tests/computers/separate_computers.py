"""Computers that share nothing: each has its own network place, processes, host name, users and disk.

A computer is an init in namespaces of its own (network: of a place in local.netlab; mount, pid, uts, ipc), whose root
is a tmpfs with the system and the virtual environment bound into it, read-only. Its /home is a tmpfs of the disk's size
that a process of its own holds. Killing the init is pulling the plug: all that ran there is gone, /home is there again
after the next boot.

Programs run as an ordinary user (uid 1000) with an environment of their own; `farflung` there is the source tree that
`site` names, so two computers may run two versions. `clock` seconds are added to what programs that start from then on
read as the time of day (clock_offset.c, which needs a C compiler).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from farflung.local.netlab import NetworkLab, namespaces

UID: Final = 1000
SOURCE: Final = Path(__file__).resolve().parents[2] / "src"
_VENV: Final = Path(sys.prefix)
_BASE: Final = Path(sys.base_prefix)
_ETC: Final = "ld.so.cache ld.so.conf ld.so.conf.d nsswitch.conf ssl alternatives localtime protocols services"

# $KEPT: an empty folder, only in this process's namespace the disk; $DISK: its size, MB.
_HOLD: Final = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o "size=${DISK}M,mode=755" home "$KEPT"
echo up
exec "$PYTHON" -I -c "$INIT"
"""

# $ROOT: an empty folder; $KEPT: the disk; $BINDS: paths, read-only; $NAME.
_BOOT: Final = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o size=16M,mode=755 root "$ROOT"
cd "$ROOT"
mkdir -p etc home proc sys dev tmp run var/tmp old root
mount -t tmpfs -o mode=1777 tmp tmp
for path in $BINDS; do
  if [ -L "$path" ]; then ln -s "$(readlink "$path")" ".$path"
  elif [ -d "$path" ]; then mkdir -p ".$path"; mount --rbind "$path" ".$path"; mount -o remount,bind,ro ".$path"
  fi
done
for name in $ETC; do [ -e "/etc/$name" ] && cp -a "/etc/$name" etc/ || true; done
printf 'root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n' > etc/passwd
printf 'root:x:0:\nuser:x:1000:\n' > etc/group
printf '127.0.0.1 localhost\n' > etc/hosts
mkdir -p ".$SOURCE" && mount --bind "$SITE" ".$SOURCE" && mount -o remount,bind,ro ".$SOURCE"
mount --bind "$KEPT" home
mkdir -p home/user && chown 1000:1000 home/user
mount -t proc proc proc
mount --rbind /dev dev
mount -t sysfs sys sys || true
hostname "$NAME"
pivot_root . old
cd /
umount -l old
echo up
exec "$PYTHON" -I -c "$INIT"
"""

_INIT: Final = "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True: signal.pause()"


class Computer:
    """One computer at a place of a laboratory. `boot` it; `off` ends all that runs on it."""

    def __init__(self, lab: NetworkLab, place: str, folder: Path, *, disk_mb: int = 4000, site: Path = SOURCE) -> None:
        """`folder`: scratch of this computer."""
        self.lab, self.place, self.site, self.clock = lab, place, site, 0
        self._folder, self._disk_mb = folder, disk_mb
        self._shell: subprocess.Popen[str] | None = None
        self._holder: subprocess.Popen[str] | None = None
        self._logs = 0
        self._init = 0
        self._programs: list[subprocess.Popen[str]] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def scratch(self) -> Path:
        """The folder with the logs of its programs, which are not on its disk."""
        return self._folder

    @property
    def disk(self) -> Path:
        """Its /home as this computer sees it."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{self._folder.resolve()}/disk")

    @property
    def address(self) -> str:
        """Where its neighbours reach it."""
        return self.lab.address(self.place)

    def boot(self) -> Computer:
        """Starts it. Raises RuntimeError with what the boot said."""
        root, kept = self._folder / "root", self._folder.resolve() / "disk"
        for folder in (root, kept):
            folder.mkdir(exist_ok=True)
        binds = ["/usr", "/bin", "/sbin", "/lib", "/lib64", str(_VENV), str(_BASE)]
        environment = {
            "PATH": os.environ["PATH"],
            "ROOT": str(root),
            "SITE": str(self.site),
            "SOURCE": str(SOURCE),  # where the virtual environment looks for the package
            "DISK": str(self._disk_mb),
            "KEPT": str(kept),
            "BINDS": " ".join(dict.fromkeys(binds)),
            "ETC": _ETC,
            "NAME": self.place,
            "INIT": _INIT,
            "PYTHON": str(_VENV / "bin" / "python"),
        }
        if self._holder is None:
            self._holder = self._up(["unshare", "--mount", "sh", "-c", _HOLD], environment)
        enter = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt"]
        enter.append(f"--net={namespaces.NAMESPACES / self.lab._space(self.place)}")
        apart = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
        self._shell = self._up([*enter, *apart, "sh", "-c", _BOOT], environment)
        children = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text().split()
        self._init = int(children[0])
        return self

    def _up(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        """A process of this computer that says when it is up, and ends with this process."""
        shell = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert shell.stdout is not None
        if shell.stdout.readline() != "up\n":
            shell.kill()
            raise RuntimeError(f"{self.place} does not boot: {shell.communicate()[1]}")
        return shell

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs a program there, as its user."""
        variables = {
            "HOME": "/home/user",
            "USER": "user",
            "PATH": f"{_VENV}/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TERM": "dumb",
            "LANG": "C.UTF-8",
        }
        if self.clock:
            shutil.copy(_clock_library(self._folder), f"/proc/{self._init}/root/tmp/clock.so")
            variables |= {"LD_PRELOAD": "/tmp/clock.so", "CLOCK_OFFSET": str(self.clock)}
        enter = [
            "nsenter",
            "-t",
            str(self._init),
            "-m",
            "-p",
            "-u",
            "-i",
            "-n",
            f"--wd=/proc/{self._init}/root/home/user",
        ]
        user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        said = [f"{name}={value}" for name, value in variables.items()]
        return [*enter, *user, "env", "-i", "-C", "/home/user", *said, *words]

    def start(self, words: str, log: str = "") -> Program:
        """Starts a farflung command line; its output goes to a log."""
        self._logs += 1
        path = self._folder / f"{log or self._logs}.log"
        with path.open("w") as out:
            process = subprocess.Popen(
                self.command([str(_VENV / "bin" / "python"), "-m", "farflung.app.cli.main", *shlex.split(words)]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._programs.append(process)
        return Program(process, path)

    def run(self, words: str, seconds: float = 120.0) -> str:
        """Runs a farflung command line to its end. Raises AssertionError with its output where it fails."""
        program = self.start(words)
        status = program.wait(seconds)
        assert status == 0, f"{words} at {self.place} ended with {status}:\n{program.text}"
        return program.text

    def off(self) -> None:
        """Pulls the plug."""
        if self._shell is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._init, signal.SIGKILL)
        self._shell.kill()
        self._shell.communicate()
        self._shell = None
        for process in self._programs:
            process.send_signal(signal.SIGCONT)
            process.wait()
        self._programs.clear()

    def scrap(self) -> None:
        """Pulls the plug for good: its disk is gone as well."""
        self.off()
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()
            self._holder = None

    def fill(self) -> None:
        """Leaves no byte of its disk free."""
        with contextlib.suppress(OSError), (self.disk / "full").open("wb", 0) as file:
            while file.write(bytes(1 << 20)):
                pass

    def empty(self) -> None:
        """Removes what `fill` wrote."""
        (self.disk / "full").unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stops every process, as a closed lid does; its clock goes on."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets them go on, and what entered for them, which stops when they do."""
        self._signal(signal.SIGCONT)
        for process in self._programs:
            process.send_signal(signal.SIGCONT)

    def processes(self) -> list[int]:
        """The processes that run there, by their number here; its init is none of them."""
        own, found = os.readlink(f"/proc/{self._init}/ns/pid"), list[int]()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and int(entry.name) != self._init and os.readlink(entry / "ns/pid") == own:
                    found.append(int(entry.name))
        return found

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


class Program:
    """A command line that runs on a computer."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.process, self._path = process, path

    @property
    def text(self) -> str:
        """What it has said."""
        return self._path.read_text(errors="replace")

    def wait(self, seconds: float) -> int:
        """Its exit status. Raises AssertionError with its output when it does not end."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"did not end in {seconds} s:\n{self.text}") from None

    def until(self, holds: Callable[[str], bool], seconds: float = 60.0) -> str:
        """Waits for it to say something. Raises AssertionError with its output."""
        deadline = time.monotonic() + seconds
        while not holds(text := self.text):
            assert time.monotonic() < deadline, f"was not said in {seconds} s:\n{text}"
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{text}"
            time.sleep(0.1)
        return text


def _clock_library(folder: Path) -> Path:
    """What moves a program's clock, compiled."""
    library = folder / "clock.so"
    if not library.exists():
        source = Path(__file__).with_name("clock_offset.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


@contextlib.contextmanager
def computers(lab: NetworkLab, folder: Path, *places: str, disk_mb: int = 4000) -> Iterator[dict[str, Computer]]:
    """Booted computers by their place; off at the end."""
    made = {place: Computer(lab, place, folder / place, disk_mb=disk_mb) for place in places}
    try:
        yield {place: computer.boot() for place, computer in made.items()}
    finally:
        for computer in made.values():
            computer.scrap()
