// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// podLogs is where the kubelet keeps the logs of pods: a folder NAMESPACE_NAME_UID for each.
const podLogs = "/var/log/pods"

// Pods returns the cgroups of pods on this machine, sorted: of that with a UID; of that with a name, or NAMESPACE/NAME; or of all with
// an annotation or a label KEY=VALUE. The error matches ErrNotFound if there is none, and ErrAmbiguous if a name is that of pods of
// several namespaces.
func Pods(ctx context.Context, which string) ([]string, error) { return system().pods(ctx, which) }

// EndedPods is Pods for those that may have ended. Their cgroups are of paths. The names of pods are known as long as there are logs.
func EndedPods(ctx context.Context, which string, paths []string) ([]string, error) {
	return systemEnded(paths).pods(ctx, which)
}

func (f finder) pods(ctx context.Context, which string) ([]string, error) {
	if key, value, is := strings.Cut(which, "="); is {
		return f.annotated(ctx, key, value)
	}
	if isUID(which) {
		if p, err := f.pod(which); p != "" || err != nil {
			return []string{p}, err
		}
	}
	p, err := f.namedPod(which)
	if err != nil {
		return nil, err
	}
	return []string{p}, nil
}

// pod returns the cgroup of the pod with a UID, or "". Its name has the UID: with underscores if systemd makes the cgroups.
func (f finder) pod(uid string) (string, error) {
	return f.one(func(p string) bool {
		name := strings.ReplaceAll(strings.TrimSuffix(path.Base(p), ".slice"), "_", "-")
		return name == "pod"+uid || strings.HasSuffix(name, "-pod"+uid)
	})
}

// namedPod returns the cgroup of the pod with a name. There may be logs of pods that are gone.
func (f finder) namedPod(which string) (string, error) {
	namespace, name, is := strings.Cut(which, "/")
	if !is {
		namespace, name = "", which
	}
	entries, err := os.ReadDir(f.logs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	found := map[string]string{}
	for _, e := range entries {
		// None of the three has an underscore.
		words := strings.Split(e.Name(), "_")
		if len(words) != 3 || words[1] != name || is && words[0] != namespace || !isUID(words[2]) {
			continue
		}
		p, err := f.pod(words[2])
		if err != nil {
			return "", err
		}
		if p != "" {
			found[p] = words[0] + "/" + words[1]
		}
	}
	var all, names []string
	for p, n := range found {
		all, names = append(all, p), append(names, n)
	}
	switch len(all) {
	case 1:
		return all[0], nil
	case 0:
		return "", fmt.Errorf("%w: no pod %q runs on this machine", ErrNotFound, which)
	}
	slices.Sort(names)
	return "", fmt.Errorf("%w with the name %s: %s", ErrAmbiguous, which, strings.Join(names, ", "))
}

// annotated returns the cgroups of the pods with an annotation or a label, which the container runtime knows.
func (f finder) annotated(ctx context.Context, key, value string) ([]string, error) {
	out, err := f.run(ctx, "crictl", "pods", "--state", "ready", "--output", "json")
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: crictl, which knows the annotations of pods, is not installed: give the name of a pod", ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("crictl pods: %w", err)
	}
	var list struct {
		Items []struct {
			Metadata            struct{ UID string }
			Annotations, Labels map[string]string
		}
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("the output of 'crictl pods': %w", err)
	}
	var all []string
	for _, pod := range list.Items {
		has := func(m map[string]string) bool { v, ok := m[key]; return ok && v == value }
		if !has(pod.Annotations) && !has(pod.Labels) || !isUID(pod.Metadata.UID) {
			continue
		}
		p, err := f.pod(pod.Metadata.UID)
		if err != nil {
			return nil, err
		}
		if p != "" {
			all = append(all, p)
		}
	}
	if all == nil {
		return nil, fmt.Errorf("%w: no pod with the annotation or label %s=%s runs on this machine", ErrNotFound, key, value)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
