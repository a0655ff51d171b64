// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"smcr/internal/testing/netnstest"
)

// A pod runs on a node. Its containers are processes of crun.
type pod struct {
	node    *node
	name    string
	spec    *corev1.PodSpec
	id      string            // begins the names of its containers
	cgroup  string            // below the top of the tree
	hosts   string            // its /etc/hosts
	volumes map[string]string // where each volume is
	running []*running        // in the order of their start
}

// running is a container that was started.
type running struct {
	c    *corev1.Container
	id   string
	proc *netnstest.Process
}

// newPod makes the volumes of the pod of a workload.
func (n *node) newPod(objects []runtime.Object, name string) *pod {
	n.t.Helper()
	spec := podOf(n.t, objects, name).DeepCopy()
	n.pods++
	id := fmt.Sprintf("%s-%s-%d", n.host.Name, name, n.pods)
	p := &pod{node: n, name: name, spec: spec, id: id, volumes: map[string]string{},
		cgroup: filepath.Join(n.cgroup, "kubepods", "burstable", "pod"+strconv.Itoa(n.pods))}
	dir := filepath.Join(n.dir, "pods", id)
	p.hosts = filepath.Join(dir, "hosts")
	hosts := "127.0.0.1 localhost\n" + n.host.Addr() + " " + name + "\n"
	for service, addr := range n.services {
		hosts += addr + " " + service + "\n"
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(p.hosts, []byte(hosts), 0o644)); err != nil {
		n.t.Fatal(err)
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		source, err := p.volume(filepath.Join(dir, "volumes", v.Name), v, objects)
		if err != nil {
			n.t.Fatalf("pod %s: volume %s: %v", name, v.Name, err)
		}
		p.volumes[v.Name] = source
	}
	n.t.Cleanup(p.stop)
	return p
}

// volume makes a volume and returns where it is.
func (p *pod) volume(dir string, v *corev1.Volume, objects []runtime.Object) (string, error) {
	if v.HostPath != nil {
		return p.node.hostPath(v.HostPath)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	switch {
	case v.EmptyDir != nil:
		// The kubelet makes it for root, with this mode.
		return dir, os.Chmod(dir, 0o777)
	case v.ConfigMap != nil:
		for _, o := range objects {
			m, ok := o.(*corev1.ConfigMap)
			if !ok || m.Name != v.ConfigMap.Name {
				continue
			}
			for name, text := range m.Data {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					return "", err
				}
			}
			return dir, nil
		}
		return "", fmt.Errorf("no ConfigMap %s", v.ConfigMap.Name)
	}
	return "", errors.New("a kind of volume that this test does not know")
}

// start starts the pod: the init containers one after the other, then the containers. It
// returns when all are ready.
func (p *pod) start() error {
	for i := range p.spec.InitContainers {
		c := &p.spec.InitContainers[i]
		r, err := p.run(c)
		if err != nil {
			return err
		}
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			if err := p.await(r, c.StartupProbe); err != nil {
				return err
			}
			continue
		}
		if err := r.proc.Wait(limit); err != nil {
			return fmt.Errorf("init container %s: %w\n%s", c.Name, err, r.proc.Log())
		}
	}
	for i := range p.spec.Containers {
		c := &p.spec.Containers[i]
		r, err := p.run(c)
		if err != nil {
			return err
		}
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			if err := p.await(r, probe); err != nil {
				return err
			}
		}
	}
	return nil
}

// mustStart is start for a pod that must run.
func (p *pod) mustStart() {
	p.node.t.Helper()
	if err := p.start(); err != nil {
		p.node.t.Fatalf("pod %s: %v", p.name, err)
	}
}

// run starts a container.
func (p *pod) run(c *corev1.Container) (*running, error) {
	s, err := p.bundle(c)
	if err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return nil, err
	}
	bundle := filepath.Join(p.node.dir, "bundles", p.id, c.Name)
	if err := errors.Join(os.MkdirAll(bundle, 0o755), os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o644)); err != nil {
		return nil, err
	}
	r := &running{c: c, id: p.id + "-" + c.Name}
	r.proc, err = p.node.host.Start(p.node.crun(context.Background(), "run", "--bundle", bundle, r.id))
	if err != nil {
		return nil, err
	}
	p.running = append(p.running, r)
	return r, nil
}

// await waits until a probe succeeds, as often as the probe says.
func (p *pod) await(r *running, probe *corev1.Probe) error {
	if probe == nil {
		return nil
	}
	return netnstest.Until(limit, func() error {
		select {
		case <-r.proc.Done():
			return netnstest.Stop(fmt.Errorf("container %s has ended:\n%s", r.c.Name, r.proc.Log()))
		default:
		}
		switch {
		case probe.Exec != nil:
			_, err := p.exec(r.c.Name, probe.Exec.Command...)
			return err
		case probe.HTTPGet != nil:
			return p.get(r.c, probe.HTTPGet)
		}
		return netnstest.Stop(errors.New("a kind of probe that this test does not know"))
	})
}

// get makes the request of a probe, from the node.
func (p *pod) get(c *corev1.Container, g *corev1.HTTPGetAction) error {
	port := g.Port.String()
	for _, named := range c.Ports {
		if named.Name == port {
			port = strconv.Itoa(int(named.ContainerPort))
		}
	}
	return p.node.host.Do(func() error {
		// The socket must be made on this thread, which is in the network namespace.
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(p.node.host.Addr(), port), 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }, DisableKeepAlives: true,
		}}
		answer, err := client.Get("http://" + p.name + g.Path)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %w", answer.Status, err)
		}
		return nil
	})
}

// find returns a running container.
func (p *pod) find(name string) *running {
	p.node.t.Helper()
	for _, r := range p.running {
		if r.c.Name == name {
			return r
		}
	}
	p.node.t.Fatalf("container %s was not started", name)
	return nil
}

// exec runs a command in a container and returns its standard output.
func (p *pod) exec(name string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := p.node.crun(ctx, append([]string{"exec", p.find(name).id}, argv...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s in %s: %w: %s", strings.Join(argv, " "), name, err, said.String())
	}
	return out.String(), nil
}

// stop ends the pod: first the containers, then the sidecars in the reverse order of their
// start. A second call does nothing.
func (p *pod) stop() {
	for i := len(p.running) - 1; i >= 0; i-- {
		r := p.running[i]
		select {
		case <-r.proc.Done():
		default:
			_ = r.proc.Cmd.Process.Signal(unix.SIGTERM) // crun passes it on
			grace := 30 * time.Second
			if s := p.spec.TerminationGracePeriodSeconds; s != nil {
				grace = time.Duration(*s) * time.Second
			}
			if err := r.proc.Wait(grace); errors.Is(err, os.ErrDeadlineExceeded) {
				p.node.t.Errorf("pod %s: container %s has not ended %v after SIGTERM", p.name, r.c.Name, grace)
			}
		}
		if p.node.t.Failed() {
			p.node.t.Logf("pod %s, container %s:\n%s", p.name, r.c.Name, r.proc.Log())
		}
		// This also ends a container whose crun was killed.
		_ = p.node.crun(context.Background(), "delete", "--force", r.id).Run()
	}
	p.running = nil
}
