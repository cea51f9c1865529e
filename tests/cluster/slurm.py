"""A Slurm of one machine: munged, slurmdbd over MariaDB, slurmctld and slurmd, all on loopback."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import subprocess
from pathlib import Path

from tests.cluster.services import LOOPBACK, Services, free_ports, until

PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "mariadb", "slurmdbd", "slurmctld", "slurmd", "sbatch", "srun")
GPUS = 2  # made up
CONFIG = """
ClusterName=test
SlurmctldHost={host}({loopback})
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdTimeout={patience}
KillWait=2
MinJobAge=300
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={loopback}
AccountingStoragePort={dbd_port}
AccountingStoragePass={folder}/munge.socket
NodeName={host} NodeHostname={host} NodeAddr={loopback} CPUs={cpus} RealMemory=4000 Gres=gpu:{gpus}
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
ACCOUNTING = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost={host}
DbdAddr={loopback}
DbdPort={dbd_port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost={loopback}
StoragePort={sql_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
CommunicationParameters=NoInAddrAny
"""


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Slurm:
    """One cluster of one node.

    Args:
        folder: for all its files; short, as it holds sockets.
        cpus: of the node, whatever the machine has.
        patience: seconds after which a silent node is down, and its jobs are queued again.
    """

    def __init__(self, folder: Path, cpus: int = 2, patience: int = 60) -> None:
        self.folder = folder
        folder.chmod(0o755)  # munge refuses a folder that others may write to
        self.services = Services(folder, mark=str(folder))
        ctld, slurmd, dbd, self._sql = free_ports(4)
        values = {
            "host": socket.gethostname().partition(".")[0],
            "loopback": LOOPBACK,
            "ctld_port": ctld,
            "slurmd_port": slurmd,
            "dbd_port": dbd,
            "sql_port": self._sql,
            "folder": folder,
            "cpus": cpus,
            "patience": patience,
            "gpus": GPUS,
            "password": secrets.token_hex(8),
        }
        self._password = str(values["password"])
        devices = [folder / f"gpu{number}" for number in range(GPUS)]
        for device in devices:
            os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        for name in ("state", "spool"):
            (folder / name).mkdir()
        self._write("slurm.conf", CONFIG.format(**values))
        self._write("slurmdbd.conf", ACCOUNTING.format(**values))
        self._write("gres.conf", "".join(f"Name=gpu File={device}\n" for device in devices))
        (folder / "munge.key").touch(mode=0o600)
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text.lstrip(), encoding="utf-8")

    def start(self) -> None:
        """Start all daemons, each after the previous one answers."""
        folder, services = self.folder, self.services
        socket_path = folder / "munge.socket"
        files = [f"--{kind}-file={folder}/munged.{kind}" for kind in ("pid", "log", "seed")]
        options = ["--foreground", f"--socket={socket_path}", f"--key-file={folder}/munge.key"]
        services.start("munged", ["munged", *options, *files])
        self._start_sql()
        until(socket_path.exists, "munged")
        services.start("slurmdbd", ["slurmdbd", "-D"], self.variables)
        until(lambda: self.answers("sacctmgr", "-n", "show", "cluster"), "slurmdbd")
        self.run("sacctmgr", "-i", "add", "cluster", "test")
        services.start("slurmctld", ["slurmctld", "-D", "-f", f"{folder}/slurm.conf"])
        until(lambda: self.answers("scontrol", "ping"), "slurmctld")
        self.start_node()

    def _start_sql(self) -> None:
        data = self.folder / "sql"
        own = ["--no-defaults", f"--datadir={data}", "--user=root"]  # --no-defaults has to be the first option
        install = ["mariadb-install-db", *own, "--skip-test-db", "--auth-root-authentication-method=socket"]
        subprocess.run(install, check=True, capture_output=True, timeout=120)
        sql_socket = self.folder / "sql.socket"
        place = [f"--socket={sql_socket}", f"--bind-address={LOOPBACK}", f"--port={self._sql}"]
        self.services.start("mariadbd", ["mariadbd", *own, *place, "--innodb-buffer-pool-size=64M"])
        client = ["mariadb", "--no-defaults", f"--socket={sql_socket}", "--user=root", "-e"]

        def accepts() -> bool:
            return subprocess.run([*client, "SELECT 1"], capture_output=True, timeout=30).returncode == 0

        until(accepts, "mariadbd")
        grant = f"GRANT ALL ON slurm.* TO 'slurm'@'{LOOPBACK}' IDENTIFIED BY '{self._password}'"
        subprocess.run([*client, grant], check=True, capture_output=True, timeout=30)

    def start_node(self) -> None:
        self.services.start("slurmd", ["slurmd", "-D", "-f", f"{self.folder}/slurm.conf"])
        until(lambda: self.run("sinfo", "-h", "-o", "%t").strip() in ("idle", "mix", "alloc"), "slurmd")

    def environment(self) -> dict[str, str]:
        return self.services.environment(**self.variables)

    def run(self, *command: str) -> str:
        env = self.environment()
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8", env=env, timeout=60).stdout

    def answers(self, *command: str) -> bool:
        return subprocess.run(command, capture_output=True, env=self.environment(), timeout=60).returncode == 0

    def stop(self) -> None:
        if "slurmctld" in self.services.running:
            self.answers("scancel", "--full", f"--user={os.environ.get('USER', 'root')}")
        self.services.stop()
