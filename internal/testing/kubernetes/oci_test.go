// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
)

// maskedPaths and readonlyPaths are those of a container with procMount: Default.
var (
	maskedPaths = []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// capabilities returns those of a container. They are in no set that a program of another user
// than root inherits, so the kernel takes them from such a program when it is executed.
func capabilities(s *corev1.SecurityContext) (*specs.LinuxCapabilities, error) {
	if !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		return nil, fmt.Errorf("capabilities that the runtime adds by itself are not known here: drop ALL, not %v", s.Capabilities.Drop)
	}
	var caps []string
	for _, c := range s.Capabilities.Add {
		caps = append(caps, "CAP_"+string(c))
	}
	return &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}, nil
}

// profile returns the seccomp profile that a container runtime gives a container with these capabilities by default: that of
// Docker, which is also that of containerd.
func profile(s *corev1.SecurityContext, caps []string) (*specs.LinuxSeccomp, error) {
	if s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		return nil, fmt.Errorf("seccomp profile of type %s", s.SeccompProfile.Type)
	}
	return seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}}})
}

// bundle returns how crun must run a container of a pod: what a kubelet and a container runtime
// make of the manifest.
func (p *pod) bundle(c *corev1.Container) (*specs.Spec, error) {
	s := c.SecurityContext
	if s == nil || s.Capabilities == nil || s.SeccompProfile == nil || s.RunAsUser == nil || s.RunAsGroup == nil {
		return nil, fmt.Errorf("container %s: the test needs a user, a group, capabilities and a seccomp profile", c.Name)
	}
	if s.RunAsNonRoot != nil && *s.RunAsNonRoot && *s.RunAsUser == 0 {
		return nil, fmt.Errorf("container %s has runAsNonRoot and is root", c.Name)
	}
	caps, err := capabilities(s)
	if err != nil {
		return nil, err
	}
	filter, err := profile(s, caps.Bounding)
	if err != nil {
		return nil, err
	}
	img, err := p.node.image(c.Image)
	if err != nil {
		return nil, err
	}
	argv := slices.Concat(c.Command, c.Args)
	if len(c.Command) == 0 {
		argv = slices.Concat(img.entrypoint, c.Args)
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=" + p.name}
	if isStack(c) {
		// This is not in the manifest: a system call that the stack should not need ends it, as
		// in the other tests.
		env = append(env, "SMCR_SYSCALL_FILTER=strict")
	}
	for _, e := range c.Env {
		env = append(env, e.Name+"="+e.Value)
	}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		// In the cgroup namespace of the container, this is its own cgroup.
		{Destination: cgroups, Type: "cgroup2", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/etc/hosts", Type: "bind", Source: p.hosts, Options: []string{"bind", "ro", "rprivate"}},
	}
	mounts = append(mounts, img.mounts...)
	for _, m := range c.VolumeMounts {
		source, ok := p.volumes[m.Name]
		if !ok {
			return nil, fmt.Errorf("container %s mounts %s, which is not there", c.Name, m.Name)
		}
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		mounts = append(mounts, specs.Mount{Destination: m.MountPath, Type: "bind", Source: source, Options: []string{"rbind", "rprivate", mode}})
	}
	return &specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{
			User: specs.User{UID: uint32(*s.RunAsUser), GID: uint32(*s.RunAsGroup)},
			Args: argv, Env: env, Cwd: "/",
			Capabilities:    caps,
			NoNewPrivileges: s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation,
		},
		Root:     &specs.Root{Path: img.root, Readonly: s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem},
		Hostname: p.name,
		Mounts:   mounts,
		Linux: &specs.Linux{
			CgroupsPath: filepath.Join("/", p.cgroup, c.Name),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.CgroupNamespace},
				// All containers of a pod share its network. With hostNetwork, it is that of
				// the node.
				{Type: specs.NetworkNamespace, Path: p.node.host.Path()},
			},
			Seccomp:       filter,
			MaskedPaths:   maskedPaths,
			ReadonlyPaths: readonlyPaths,
		},
	}, nil
}
