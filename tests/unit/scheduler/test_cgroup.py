"""Control groups as machines, services and containers really show them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from daemon.scheduler.cgroup import pools
from daemon.scheduler.devices import Pool

MIB = 1024 * 1024
GIB = 1024 * MIB
MACHINE = 32 * GIB
NO_LIMIT = 9223372036854771712  # what version 1 says for none: the largest number, less a part of a page
DOCKER = "898b44c4a066d2dc6343c21d8a5b7c6a77079367d23bcde8c88be0eb204d3a1e"


def v2_stat(file: int = 0, mapped: int = 0, shmem: int = 0, slab: int = 0) -> str:
    """Some lines of version 2, in the kernel's order; half of the files were used lately."""
    return (
        f"anon 104857600\nfile {file + shmem}\nkernel 6414336\nkernel_stack 409600\npagetables 2031616\n"
        f"shmem {shmem}\nfile_mapped {mapped}\nfile_dirty 0\ninactive_anon 104857600\nactive_anon 4096\n"
        f"inactive_file {file // 2}\nactive_file {file - file // 2}\nunevictable 0\n"
        f"slab_reclaimable {slab}\nslab_unreclaimable 1048576\nworkingset_refault_file 28281\n"
    )


def v1_stat(file: int = 0, mapped: int = 0, shmem: int = 0, at_most: int = NO_LIMIT) -> str:
    """Some lines of version 1: the group's own numbers are small, those with all below it count."""
    return (
        f"cache 4096\nrss 1753088\nmapped_file 4096\ninactive_file 4096\nactive_file 0\n"
        f"hierarchical_memory_limit {at_most}\nhierarchical_memsw_limit {at_most}\n"
        f"total_cache {file + shmem}\ntotal_rss 1753088\ntotal_shmem {shmem}\ntotal_mapped_file {mapped}\n"
        f"total_inactive_anon 1675264\ntotal_active_anon 12288\n"
        f"total_inactive_file {file // 2}\ntotal_active_file {file - file // 2}\ntotal_unevictable 0\n"
    )


def v2(limit: object, usage: int = 0, high: object = "max", stat: str = "") -> dict[str, str]:
    return {
        "memory.max": f"{limit}\n",
        "memory.high": f"{high}\n",
        "memory.current": f"{usage}\n",
        "memory.stat": stat or v2_stat(),
    }


def v1(limit: int, usage: int = 0, stat: str = "") -> dict[str, str]:
    return {
        "memory.limit_in_bytes": f"{limit}\n",
        "memory.usage_in_bytes": f"{usage}\n",
        "memory.stat": stat or v1_stat(),
    }


def read(tmp_path: Path, listing: str, groups: Mapping[str, Mapping[str, str]]) -> list[Pool]:
    """`listing` is /proc/self/cgroup; `groups` are the folders below /sys/fs/cgroup with their files."""
    proc, mounted = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(listing)
    for group, files in groups.items():
        folder = mounted / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    return list(pools(proc, mounted, MACHINE))


# ---- version 2


def test_a_service_with_a_limit(tmp_path: Path) -> None:
    stat = v2_stat(file=2 * GIB, mapped=512 * MIB, slab=64 * MIB)
    groups = {
        "": {"cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n"},
        "system.slice": v2("max", 6 * GIB),
        "system.slice/mgr.service": v2(8 * GIB, 5 * GIB, stat=stat),
    }
    found = read(tmp_path, "0::/system.slice/mgr.service\n", groups)
    assert found == [Pool(8 * GIB, (8 - 5 + 2) * GIB + 64 * MIB - 512 * MIB)]


def test_no_limit_anywhere(tmp_path: Path) -> None:
    groups = {"": {}, "user.slice": v2("max"), "user.slice/user-1000.slice": v2("max")}
    assert read(tmp_path, "0::/user.slice/user-1000.slice\n", groups) == []


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    groups = {"a": v2(MACHINE), "a/b": v2(MACHINE - 4096)}
    assert read(tmp_path, "0::/a/b\n", groups) == [Pool(MACHINE - 4096, MACHINE - 4096)]


def test_where_a_service_is_slowed_down_counts_as_its_limit(tmp_path: Path) -> None:
    groups = {"system.slice/mgr.service": v2("max", GIB, high=3 * GIB)}
    assert read(tmp_path, "0::/system.slice/mgr.service\n", groups) == [Pool(3 * GIB, 2 * GIB)]


def test_a_limit_of_a_group_further_out(tmp_path: Path) -> None:
    """A job of Slurm's: the step is unlimited, the job is not, and others of it use memory too."""
    job = "system.slice/slurm-worker-1_slurmstepd.scope/job_4749/step_0/user"
    groups = {job: v2(4194304000, GIB), f"{job}/task_0": v2("max", 100 * MIB)}
    assert read(tmp_path, f"0::/{job}/task_0\n", groups) == [Pool(4194304000, 4194304000 - GIB)]


def test_each_group_with_a_limit_counts(tmp_path: Path) -> None:
    groups = {"a": v2(4 * GIB, 3 * GIB), "a/b": v2(2 * GIB, MIB)}
    assert read(tmp_path, "0::/a/b\n", groups) == [Pool(2 * GIB, 2 * GIB - MIB), Pool(4 * GIB, GIB)]


def test_a_group_that_is_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    assert read(tmp_path, "0::/a\n", {"a": v2(GIB, GIB + MIB)}) == [Pool(GIB, 0)]


def test_a_container_that_sees_only_itself(tmp_path: Path) -> None:
    assert read(tmp_path, "0::/\n", {"": v2(512 * MIB, 5 * MIB)}) == [Pool(512 * MIB, 507 * MIB)]


def test_a_container_that_sees_the_hosts_groups(tmp_path: Path) -> None:
    scope = f"system.slice/docker-{DOCKER}.scope"
    groups = {"": {}, "system.slice": v2("max"), scope: v2(512 * MIB)}
    assert read(tmp_path, f"0::/{scope}\n", groups) == [Pool(512 * MIB, 512 * MIB)]


def test_a_path_that_leads_out_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    assert read(tmp_path, "0::/../../outside\n", {"": v2(GIB)}) == [Pool(GIB, GIB)]


# ---- version 1


def test_a_service_in_version_1(tmp_path: Path) -> None:
    stat = v1_stat(file=2 * GIB, mapped=512 * MIB, at_most=8 * GIB)
    groups = {
        "memory": v1(NO_LIMIT, 20 * GIB),
        "memory/system.slice": v1(NO_LIMIT, 6 * GIB),
        "memory/system.slice/mgr.service": v1(8 * GIB, 5 * GIB, stat),
    }
    listing = (
        "11:cpu,cpuacct:/system.slice/mgr.service\n9:memory:/system.slice/mgr.service\n1:name=systemd:/\n"
    )
    assert set(read(tmp_path, listing, groups)) == {Pool(8 * GIB, (8 - 5 + 2) * GIB - 512 * MIB)}


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    assert read(tmp_path, "4:memory:/a\n", {"memory": v1(NO_LIMIT), "memory/a": v1(NO_LIMIT)}) == []


def test_a_container_in_version_1_is_told_the_hosts_path(tmp_path: Path) -> None:
    groups = {"memory": v1(512 * MIB, 5 * MIB, v1_stat(at_most=512 * MIB))}
    listing = f"8:memory:/docker/{DOCKER}\n4:devices:/docker/{DOCKER}\n0::/\n"
    assert set(read(tmp_path, listing, groups)) == {Pool(512 * MIB, 507 * MIB)}


def test_a_path_with_colons(tmp_path: Path) -> None:
    """As containerd names them."""
    group = (
        "system.slice/containerd.service/kubepods-burstable-podb96a7488.slice:cri-containerd:6ef14b5a76df7b5d"
    )
    groups = {"memory": v1(NO_LIMIT), f"memory/{group}": v1(GIB)}
    assert read(tmp_path, f"13:memory:/{group}\n10:pids:/{group}\n", groups) == [Pool(GIB, GIB)]


def test_a_limit_of_a_group_that_is_out_of_sight(tmp_path: Path) -> None:
    groups = {"memory": v1(NO_LIMIT, 5 * MIB, v1_stat(at_most=GIB))}
    assert read(tmp_path, "4:memory:/kubepods/pod1/c1\n", groups) == [Pool(GIB, GIB - 5 * MIB)]


# ---- both, and neither


def test_with_both_versions_the_memory_is_where_version_1_has_it(tmp_path: Path) -> None:
    listing = "9:name=systemd:/\n4:memory:/jobs/8f4f2388\n1:cpu:/\n0::/jobs\n"
    groups = {
        "unified/jobs": {"cgroup.controllers": "hugetlb\n"},
        "memory": v1(NO_LIMIT),
        "memory/jobs": v1(NO_LIMIT),
        "memory/jobs/8f4f2388": v1(2 * GIB, MIB),
    }
    assert read(tmp_path, listing, groups) == [Pool(2 * GIB, 2 * GIB - MIB)]


def test_version_1_without_a_folder_for_memory(tmp_path: Path) -> None:
    """Version 2 mounted as always, and version 1 left over for something else."""
    assert read(tmp_path, "1:name=openrc:/\n0::/a\n", {"a": v2(GIB)}) == [Pool(GIB, GIB)]
    assert read(tmp_path / "none", "3:cpu,cpuacct:/\n2:memory:/\n", {"cpu,cpuacct": {}}) == []


def test_shared_memory_that_is_mapped_is_no_cache(tmp_path: Path) -> None:
    """A database's buffers: mapped, but no file, and charged already."""
    stat = v2_stat(file=GIB, mapped=3 * GIB, shmem=3 * GIB)
    assert read(tmp_path, "0::/a\n", {"a": v2(8 * GIB, 4 * GIB, stat=stat)}) == [Pool(8 * GIB, 5 * GIB)]


def test_a_sandbox_that_shows_no_statistics(tmp_path: Path) -> None:
    files = {"memory.limit_in_bytes": f"{GIB}\n", "memory.usage_in_bytes": f"{MIB}\n"}
    assert read(tmp_path, "1:memory:/\n", {"memory": files}) == [Pool(GIB, GIB - MIB)]


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert list(pools(tmp_path, tmp_path, MACHINE)) == []


def test_what_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="soon"):
        read(tmp_path, "0::/\n", {"": v2("soon")})
