// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// stackCapabilities are what the stack needs: docs/security.md.
var stackCapabilities = []corev1.Capability{"BPF", "NET_ADMIN", "NET_RAW"}

// A workload is an object that makes pods.
type workload struct {
	kind, name string
	pod        *corev1.PodSpec
}

// workloads returns those of objects.
func workloads(objects []runtime.Object) (all []workload) {
	for _, o := range objects {
		switch o := o.(type) {
		case *appsv1.DaemonSet:
			all = append(all, workload{"DaemonSet", o.Name, &o.Spec.Template.Spec})
		case *appsv1.Deployment:
			all = append(all, workload{"Deployment", o.Name, &o.Spec.Template.Spec})
		case *batchv1.Job:
			all = append(all, workload{"Job", o.Name, &o.Spec.Template.Spec})
		}
	}
	return all
}

// isStack reports whether a container runs the stack.
func isStack(c *corev1.Container) bool { return len(c.Args) > 0 && c.Args[0] == "serve" }

// isProgram reports whether a container runs a program of an example.
func isProgram(c *corev1.Container) bool { return c.Name == "nginx" || c.Name == "curl" }

// containers returns the init containers and containers of a pod.
func containers(p *corev1.PodSpec) (all []*corev1.Container) {
	for i := range p.InitContainers {
		all = append(all, &p.InitContainers[i])
	}
	for i := range p.Containers {
		all = append(all, &p.Containers[i])
	}
	return all
}

// rights returns what a container may do and must not, in words.
func rights(p *corev1.PodSpec, c *corev1.Container) (bad []string) {
	note := func(is bool, format string, args ...any) {
		if is {
			bad = append(bad, fmt.Sprintf("%s: ", c.Name)+fmt.Sprintf(format, args...))
		}
	}
	s := c.SecurityContext
	if s == nil || s.Capabilities == nil || s.SeccompProfile == nil {
		return []string{c.Name + ": no securityContext with capabilities and a seccompProfile"}
	}
	set := func(b *bool) bool { return b != nil && *b }
	note(!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}), "drops %v", s.Capabilities.Drop)
	note(s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation, "may escalate")
	note(!set(s.ReadOnlyRootFilesystem), "may write to its root file system")
	note(set(s.Privileged), "is privileged")
	note(s.ProcMount != nil, "has a procMount")
	note(s.RunAsUser == nil || s.RunAsGroup == nil, "no user or no group")
	note(c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero(), "no limit of memory, or no request for processors")

	var want []corev1.Capability
	root := isStack(c)
	if root {
		want = stackCapabilities
	}
	note(s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault, "seccomp profile %s", s.SeccompProfile.Type)
	have := slices.Sorted(slices.Values(s.Capabilities.Add))
	note(!slices.Equal(have, want), "adds capabilities %v", have)
	note(!root && (!set(s.RunAsNonRoot) || s.RunAsUser == nil || *s.RunAsUser == 0), "may be root")

	for _, m := range c.VolumeMounts {
		at := slices.IndexFunc(p.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if at < 0 {
			note(true, "mounts %s, which is not there", m.Name)
			continue
		}
		if host := p.Volumes[at].HostPath; host != nil && !m.ReadOnly {
			note(!isStack(c) || host.Path != "/run/smcr", "may write to %s of the node", host.Path)
		}
		note(!isStack(c) && (m.MountPath == "/run/smcr" || isProgram(c) && m.MountPath == "/opt/smcr") && !m.ReadOnly,
			"may write to %s", m.MountPath)
	}
	return bad
}

// podRights returns what a pod may do and must not.
func podRights(p *corev1.PodSpec) (bad []string) {
	if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
		bad = append(bad, "has the token of a service account")
	}
	if p.HostPID || p.HostIPC || p.ShareProcessNamespace != nil && *p.ShareProcessNamespace {
		bad = append(bad, "sees other processes")
	}
	for _, c := range containers(p) {
		bad = append(bad, rights(p, c)...)
	}
	return bad
}

// TestRights checks the rights of all containers.
func TestRights(t *testing.T) {
	version, err := os.ReadFile("../../../cmd/smcr/version.go")
	if err != nil {
		t.Fatal(err)
	}
	release := regexp.MustCompile(`release = "(.*)"`).FindStringSubmatch(string(version))[1]
	seen, stacks, programs := 0, 0, 0
	for _, folder := range folders {
		for _, w := range workloads(mustBuild(t, folder)) {
			for _, bad := range podRights(w.pod) {
				t.Errorf("%s: %s %s: %s", folder, w.kind, w.name, bad)
			}
			for _, c := range containers(w.pod) {
				seen++
				switch {
				case isStack(c):
					stacks++
					if c.StartupProbe == nil || c.LivenessProbe == nil {
						t.Errorf("%s: %s: the stack has no probes", folder, w.name)
					}
				case isProgram(c):
					programs++
				}
				if repository, tag, _ := strings.Cut(c.Image, ":"); repository == "smcr" && tag != release {
					t.Errorf("%s: %s: image %q, the release is %s", folder, c.Name, c.Image, release)
				}
				host, _, is := strings.Cut(c.Image, "/")
				if _, tag, _ := strings.Cut(c.Image, ":"); tag == "" || is && strings.ContainsAny(host, ".:") {
					t.Errorf("%s: %s: image %q has no tag, or the host of a registry", folder, c.Name, c.Image)
				}
			}
			if host := strings.Contains(folder, "hostnetwork") || w.name == "smcr-stack"; w.pod.HostNetwork != host {
				t.Errorf("%s: %s: hostNetwork %v", folder, w.name, w.pod.HostNetwork)
			}
		}
	}
	// The stack of the node; web and client, twice.
	if seen != 1+2*3+2*2 || stacks != 3 || programs != 4 {
		t.Errorf("%d containers, %d of them stacks and %d programs", seen, stacks, programs)
	}
}

// TestRightsErrors gives a pod more rights, one after the other.
func TestRightsErrors(t *testing.T) {
	yes, no, zero := true, false, int64(0)
	for want, change := range map[string]func(p *corev1.PodSpec, program, stack *corev1.Container){
		"nginx: adds capabilities [SYS_PTRACE]": func(_ *corev1.PodSpec, c, _ *corev1.Container) {
			c.SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_PTRACE"}
		},
		"adds capabilities [BPF NET_ADMIN NET_RAW SYS_ADMIN]": func(_ *corev1.PodSpec, _, s *corev1.Container) {
			s.SecurityContext.Capabilities.Add = append(s.SecurityContext.Capabilities.Add, "SYS_ADMIN")
		},
		"nginx: may be root":      func(_ *corev1.PodSpec, c, _ *corev1.Container) { c.SecurityContext.RunAsUser = &zero },
		"nginx: may escalate":     func(_ *corev1.PodSpec, c, _ *corev1.Container) { c.SecurityContext.AllowPrivilegeEscalation = nil },
		"smcr-stack: drops []":    func(_ *corev1.PodSpec, _, s *corev1.Container) { s.SecurityContext.Capabilities.Drop = nil },
		"is privileged":           func(_ *corev1.PodSpec, _, s *corev1.Container) { s.SecurityContext.Privileged = &yes },
		"its root file system":    func(_ *corev1.PodSpec, _, s *corev1.Container) { s.SecurityContext.ReadOnlyRootFilesystem = &no },
		"no securityContext":      func(_ *corev1.PodSpec, c, _ *corev1.Container) { c.SecurityContext.SeccompProfile = nil },
		"seccomp profile Unconf":  func(_ *corev1.PodSpec, c, _ *corev1.Container) { c.SecurityContext.SeccompProfile.Type = "Unconfined" },
		"may write to /opt/smcr":  func(_ *corev1.PodSpec, c, _ *corev1.Container) { mounted(c, "/opt/smcr").ReadOnly = false },
		"to /sys/fs/cgroup of":    func(_ *corev1.PodSpec, _, s *corev1.Container) { mounted(s, "/host/cgroup").ReadOnly = false },
		"none, which is not":      func(_ *corev1.PodSpec, c, _ *corev1.Container) { mounted(c, "/tmp").Name = "none" },
		"the token of a service":  func(p *corev1.PodSpec, _, _ *corev1.Container) { p.AutomountServiceAccountToken = nil },
		"sees other processes":    func(p *corev1.PodSpec, _, _ *corev1.Container) { p.ShareProcessNamespace = &yes },
		"smcr-stack: no limit of": func(_ *corev1.PodSpec, _, s *corev1.Container) { s.Resources.Limits = nil },
	} {
		p := podOf(t, mustBuild(t, "examples/sidecar"), "web")
		change(p, container(t, p, "nginx"), container(t, p, "smcr-stack"))
		bad := podRights(p)
		if len(bad) != 1 || !strings.Contains(bad[0], want) {
			t.Errorf("%q, want %q", bad, want)
		}
	}
}

// podOf returns the pod of a workload.
func podOf(t *testing.T, objects []runtime.Object, name string) *corev1.PodSpec {
	t.Helper()
	for _, w := range workloads(objects) {
		if w.name == name {
			return w.pod
		}
	}
	t.Fatalf("no workload %s", name)
	return nil
}

// container returns a container of a pod.
func container(t *testing.T, p *corev1.PodSpec, name string) *corev1.Container {
	t.Helper()
	for _, c := range containers(p) {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no container %s", name)
	return nil
}

// mounted returns the mount of a container at a path.
func mounted(c *corev1.Container, path string) *corev1.VolumeMount {
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].MountPath == path {
			return &c.VolumeMounts[i]
		}
	}
	panic("no mount " + path)
}
