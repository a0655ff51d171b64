// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPodCgroup(t *testing.T) {
	top := t.TempDir()
	const uid = "9e1b0c3a-6a5f-4c0e-9d0c-0e6f3b0f0001"
	for _, name := range []string{
		"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod9e1b0c3a_6a5f_4c0e_9d0c_0e6f3b0f0001.slice/cri-containerd-1.scope",
		"kubepods/besteffort/podaaaa/1",
		"other-podbbbb",
	} {
		if err := os.MkdirAll(filepath.Join(top, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string]string{
		uid:    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod9e1b0c3a_6a5f_4c0e_9d0c_0e6f3b0f0001.slice",
		"aaaa": "/kubepods/besteffort/podaaaa",
		"aaa":  "",
		"":     "",
	} {
		if got, err := podCgroup(top, id); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", id, got, err, want)
		}
	}
}
