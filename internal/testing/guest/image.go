// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// bootModules are the modules that a guest needs for its root file system and its links.
// The modules that these need are added.
var bootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "virtio_net"}

// builtIn are those that some kernels have built in.
var builtIn = []string{"virtio_pci", "virtio_console"}

// buildInitramfs returns the initial file system: the agent as /init, and the
// modules that it loads, in order, in /modules.
func buildInitramfs(ctx context.Context, k Kernel, dir string) ([]byte, error) {
	agent, err := buildAgent(ctx, dir)
	if err != nil {
		return nil, err
	}
	modules, err := moduleOrder(k, bootModules)
	if err != nil {
		return nil, err
	}
	a := newArchive()
	a.add("dev", modeDir, nil)
	// The kernel opens it for process 1 before any file system is mounted.
	a.addConsole("dev/console")
	a.add("modules", modeDir, nil)
	for i, m := range modules {
		data, err := os.ReadFile(filepath.Join(k.modules(), m))
		if err != nil {
			return nil, unavailable("incomplete kernel in the cache: %w", err)
		}
		a.add(fmt.Sprintf("modules/%02d-%s", i, filepath.Base(m)), modeFile, data)
	}
	a.add("init", modeProgram, agent)
	return a.finish(), nil
}

// buildAgent compiles the agent statically.
func buildAgent(ctx context.Context, dir string) ([]byte, error) {
	file := filepath.Join(dir, "agent")
	if err := Build(ctx, "smcr/internal/testing/guest/agent", file); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(file)
	return data, errors.Join(err, os.Remove(file))
}

// moduleOrder returns the files of modules and of all modules that they need, in the
// order of loading, relative to the directory of the kernel's modules.
func moduleOrder(k Kernel, names []string) ([]string, error) {
	f, err := os.Open(filepath.Join(k.modules(), "modules.dep"))
	if err != nil {
		return nil, unavailable("incomplete kernel in the cache: %w", err)
	}
	defer f.Close()
	needs := make(map[string][]string) // the files that a file needs, nearest first
	files := make(map[string]string)   // file by module name
	for sc := bufio.NewScanner(f); sc.Scan(); {
		file, rest, _ := strings.Cut(sc.Text(), ":")
		needs[file] = strings.Fields(rest)
		name, _, _ := strings.Cut(filepath.Base(file), ".ko")
		files[name] = file
	}
	var order []string
	add := func(file string) {
		if !slices.Contains(order, file) {
			order = append(order, file)
		}
	}
	for _, n := range names {
		file, ok := files[n]
		if !ok && slices.Contains(builtIn, n) {
			continue
		}
		if !ok {
			return nil, unavailable("kernel %s has no module %s", k.Version, n)
		}
		for _, need := range slices.Backward(needs[file]) {
			add(need)
		}
		add(file)
	}
	return order, nil
}
