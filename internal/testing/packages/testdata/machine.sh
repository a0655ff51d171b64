#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# machine.sh KIND DIR NAME: runs a machine in namespaces of its own until the standard input
# ends, which it does when the test ends, also if the test is killed. Then all processes of the
# machine are killed, so that its namespaces and mounts are gone, and its cgroup is removed.
# Prints the process whose only child is process 1 of the machine.
#
# The kinds are
#
#   store    DIR becomes memory for the files of the other kinds, which run in its mount namespace
#   chroot   a machine with the files of DIR/base and its changes in DIR/NAME, without systemd
#   systemd  the same, and process 1 is systemd, which starts no unit by itself
#   own      the same, and its root and its devices are its own: its services can use user
#            namespaces and /dev/log, but programs of this computer cannot run there
#   again    a machine of the kind own that has ended boots anew, with its files, and with the units
#            that are enabled
set -euo pipefail

# watch starts process 1 and kills it when the standard input ends.
watch() {
  local namespaces=(--mount --pid --fork --kill-child --mount-proc)
  if [ "$1" != store ]; then
    namespaces+=(--net --cgroup --ipc --uts)
    in_cgroups join "$2" "$3"
    trap 'in_cgroups leave "$2" "$3"' EXIT
  fi
  unshare "${namespaces[@]}" "$BASH" "$0" "boot-$1" "${@:2}" </dev/null >&2 &
  echo "$!"
  cat >/dev/null
  kill -KILL "$!"
  wait "$!" || true
}

# in_cgroups runs a step with the tree of cgroups at DIR/NAME, in a mount namespace that ends with
# the step.
in_cgroups() {
  unshare --mount "$BASH" "$0" "$@" "$$"
}

join() {
  mkdir -p "$1/$2"
  mount -t cgroup2 cgroup2 "$1/$2"
  mkdir -p "$1/$2/$2"
  echo "$3" >"$1/$2/$2/cgroup.procs"
}

leave() {
  mount -t cgroup2 cgroup2 "$1/$2"
  # This process is one of its children.
  echo 0 >"$1/$2/cgroup.procs"
  echo "$3" >"$1/$2/cgroup.procs"
  # A killed process leaves its cgroup a moment later.
  for _ in $(seq 50); do
    if find "$1/$2/$2" -depth -type d -exec rmdir {} + 2>/dev/null; then return; fi
    sleep 0.1
  done
  echo "cgroup $2 stays" >&2
  exit 1
}

boot-store() {
  mount -t tmpfs -o mode=755 tmpfs "$1"
  touch "$1/ready"
  exec sleep infinity
}

# files makes the files of a machine at DIR/NAME/root.
files() {
  local dir=$1/$2 root=$1/$2/root
  mkdir -p "$dir"/{upper,work,root}
  mount -t overlay overlay -o "lowerdir=$1/base,upperdir=$dir/upper,workdir=$dir/work" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  mount --rbind /dev "$root/dev"
  mount --make-rslave "$root/dev"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  ip link set lo up
  hostname "$2"
}

# devices makes a directory of devices that belongs to the machine: systemd changes it.
devices() {
  local name major minor mode
  umount -R "$1"
  mount -t tmpfs -o mode=755 tmpfs "$1"
  while read -r name major minor mode; do
    mknod -m "$mode" "$1/$name" c "$major" "$minor"
  done <<<'null 1 3 666
zero 1 5 666
full 1 7 666
random 1 8 666
urandom 1 9 666
tty 5 0 666
kmsg 1 11 600'
  mkdir "$1"/{pts,shm,mqueue}
  mount -t devpts -o newinstance,ptmxmode=666 devpts "$1/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$1/shm"
  ln -s pts/ptmx "$1/ptmx"
  ln -s /proc/self/fd "$1/fd"
  for name in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${name%:*}" "$1/${name#*:}"; done
}

boot-chroot() {
  files "$@"
  # A shell as process 1 also waits for the orphans.
  exec chroot "$1/$2/root" bash -c 'touch /run/ready; while :; do sleep 1000; done'
}

# units leaves a machine no unit of Debian: the test is about those of the package.
units() {
  local root=$1 name
  rm -rf "$root"/{usr/lib,etc}/systemd/system/*.wants/*
  for name in sysinit basic shutdown network multi-user default; do
    printf '[Unit]\nDefaultDependencies=no\n' >"$root/etc/systemd/system/$name.target"
  done
}

systemd=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=smcr-test
  /lib/systemd/systemd --system --unit=default.target --log-target=null --show-status=no)

boot-systemd() {
  local root=$1/$2/root
  files "$@"
  units "$root"
  touch "$root/run/ready"
  exec chroot "$root" "${systemd[@]}"
}

# enabled has the units of multi-user.target started at boot, after those without which services
# do not start.
enabled() {
  local dir=$1/etc/systemd/system
  printf '[Unit]\nDefaultDependencies=no\nWants=multi-user.target\n' >"$dir/default.target"
  printf '[Unit]\nDefaultDependencies=no\nWants=%s\nAfter=%s\n' "$early" "$early" >"$dir/sysinit.target"
}
early='systemd-journald.socket systemd-journald-dev-log.socket systemd-journald.service systemd-tmpfiles-setup.service test-network.service'

boot-own() { boot-alone units "$@"; }
boot-again() { boot-alone enabled "$@"; }

# boot-alone UNITS boots a machine whose root is its own, with the units of the function UNITS.
boot-alone() {
  local units=$1
  shift
  local root=$1/$2/root
  files "$@"
  "$units" "$root"
  devices "$root/dev"
  # Processes that are chrooted cannot make user namespaces.
  mkdir -p "$root/mnt/old"
  cd "$root"
  pivot_root . mnt/old
  umount -l /mnt/old
  rmdir /mnt/old
  touch /run/ready # not before: its root is that of the test until now
  exec "${systemd[@]}"
}

case $1 in
  store | chroot | systemd | own | again) watch "$@" ;;
  *) "$@" ;;
esac
