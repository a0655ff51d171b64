// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A mountpoint is a file system to mount.
type mountpoint struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
	optional               bool
}

// plan9 are the mount options of a file system of the host. Files that the host changes
// must not be cached; files that nobody changes may be.
const plan9 = "trans=virtio,version=9p2000.L,msize=262144"

// makeSystem mounts the root file system and the other file systems, and makes it the
// root directory. The modules for this are in /modules of the initramfs. Their names give
// the order of loading.
func makeSystem() error {
	if err := mountAll("", []mountpoint{
		{"proc", "/proc", "proc", 0, "", false},
		{"sys", "/sys", "sysfs", 0, "", false},
		{"dev", "/dev", "devtmpfs", 0, "", false},
	}); err != nil {
		return err
	}
	modules, err := filepath.Glob("/modules/*") // in sorted order
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := loadModule(m); err != nil {
			return err
		}
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	release := unix.ByteSliceToString(uts.Release[:])
	if err := mountAll("", []mountpoint{
		{"host", "/lower", "9p", unix.MS_RDONLY, plan9 + ",ro,cache=loose", false},
		{"tmpfs", "/rw", "tmpfs", 0, "", false},
	}); err != nil {
		return err
	}
	for _, d := range []string{"/rw/upper", "/rw/work"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := mountAll("", []mountpoint{
		{"overlay", "/new", "overlay", 0, "lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work", false},
	}); err != nil {
		return err
	}
	for _, d := range []string{"/proc", "/sys", "/dev"} {
		if err := os.MkdirAll("/new"+d, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(d, "/new"+d, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", d, err)
		}
	}
	if err := mountAll("/new", []mountpoint{
		{"tmpfs", "/run", "tmpfs", 0, "mode=755", false},
		{"tmpfs", "/tmp", "tmpfs", 0, "mode=1777", false},
		{"tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777", false},
		{"devpts", "/dev/pts", "devpts", 0, "ptmxmode=666", false},
		{"share", "/run/share", "9p", 0, plan9 + ",cache=none", false},
		{"modules", "/usr/lib/modules/" + release, "9p", unix.MS_RDONLY, plan9 + ",ro,cache=loose", false},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", 0, "", true},
		{"bpf", "/sys/fs/bpf", "bpf", 0, "", true},
		{"tracefs", "/sys/kernel/tracing", "tracefs", 0, "", true},
	}); err != nil {
		return err
	}
	if err := switchRoot("/new"); err != nil {
		return err
	}
	// If /usr is not merged, the tools look in /lib.
	if _, err := os.Stat("/lib/modules/" + release); errors.Is(err, os.ErrNotExist) {
		if err := os.Symlink("/usr/lib/modules", "/lib/modules"); err != nil {
			return err
		}
	}
	if name := parameter("smcr.name"); name != "" {
		if err := unix.Sethostname([]byte(name)); err != nil {
			return fmt.Errorf("set the host name: %w", err)
		}
	}
	if err := raiseLoopback(); err != nil {
		return err
	}
	return firstConnect()
}

// mountAll makes the directories below root and mounts the file systems, in order.
func mountAll(root string, all []mountpoint) error {
	for _, m := range all {
		target := root + m.target
		err := os.MkdirAll(target, 0o755)
		if err == nil {
			err = unix.Mount(m.source, target, m.fstype, m.flags, m.data)
		}
		if err != nil && !m.optional {
			return fmt.Errorf("mount %s (%s): %w", m.target, m.fstype, err)
		}
	}
	return nil
}

// switchRoot makes dir, a mount point, the root directory.
func switchRoot(dir string) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root file system: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

// loadModule loads one module. It is no error if the module is loaded already.
func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(file, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load %s: %w", filepath.Base(file), err)
	}
	return nil
}

// raiseLoopback sets lo up.
func raiseLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// firstConnect makes the first TCP connection. At that time the kernel chooses its
// secrets and patches the code that checks for them. No other connection may run this
// code at the same time: an emulated processor may meet the breakpoint of such a patch
// after the patch is complete, and then the kernel does not know this breakpoint any
// more.
func firstConnect() error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.DialTimeout("tcp4", l.Addr().String(), 10*time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}
