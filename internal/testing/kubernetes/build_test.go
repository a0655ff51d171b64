// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// deployed has the files under test.
const deployed = "../../../deploy/kubernetes"

// folders are those that `kubectl apply -k` takes, below deployed.
var folders = []string{"base", "daemonset", "examples/sidecar", "examples/hostnetwork"}

// build returns the objects that kustomize makes of a folder. Each must decode into the type
// of the Kubernetes API that it names, without a field that the type does not have, and without
// a field twice.
func build(dir string) ([]runtime.Object, error) {
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("kustomize build %s: %w", dir, err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	var objects []runtime.Object
	for _, r := range made.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		o, _, err := decoder.Decode(text, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.CurId(), err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// mustBuild is build for a folder below deployed.
func mustBuild(t *testing.T, folder string) []runtime.Object {
	t.Helper()
	objects, err := build(filepath.Join(deployed, folder))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// TestSchema builds all folders and checks them against the API.
func TestSchema(t *testing.T) {
	kinds := map[string][]string{
		"base":                 {"Namespace"},
		"daemonset":            {"DaemonSet", "Namespace"},
		"examples/sidecar":     {"ConfigMap", "Deployment", "Job", "Namespace", "Service"},
		"examples/hostnetwork": {"ConfigMap", "Deployment", "Job", "Namespace", "Service"},
	}
	for _, folder := range folders {
		var got []string
		for _, o := range mustBuild(t, folder) {
			got = append(got, o.GetObjectKind().GroupVersionKind().Kind)
		}
		slices.Sort(got)
		if !slices.Equal(got, kinds[folder]) {
			t.Errorf("%s has %q, want %q", folder, got, kinds[folder])
		}
	}
	// No folder is left out.
	err := filepath.WalkDir(deployed, func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "kustomization.yaml" {
			return err
		}
		folder, err := filepath.Rel(deployed, filepath.Dir(path))
		b, rerr := os.ReadFile(path)
		if err == nil && rerr == nil && !slices.Contains(folders, folder) && !strings.Contains(string(b), "kind: Component") {
			t.Errorf("%s is not tested", folder)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSchemaErrors changes one word of a manifest after the other, and wants the error of each.
func TestSchemaErrors(t *testing.T) {
	for _, test := range []struct{ file, old, new, want string }{
		{"daemonset/stack.yaml", "updateStrategy:", "updateStrategie:", `unknown field "spec.updateStrategie"`},
		{"daemonset/stack.yaml", "readOnlyRootFilesystem:", "readonlyRootFilesystem:", `unknown field "spec.template.spec.containers[0].securityContext.readonlyRootFilesystem"`},
		{"daemonset/stack.yaml", "runAsUser: 0", "runAsUser: root", "cannot unmarshal string"},
		{"daemonset/stack.yaml", "hostNetwork: true", "hostNetwork: 1", "cannot unmarshal number"},
		{"daemonset/stack.yaml", "drop: [ALL]", "drop: ALL", "cannot unmarshal string"},
		{"daemonset/stack.yaml", "apiVersion: apps/v1", "apiVersion: apps/v2", `no kind "DaemonSet" is registered for version "apps/v2"`},
		{"sidecar/stack.yaml", "restartPolicy: Always", "restartpolicy: Always", `unknown field "spec.template.spec.initContainers[1].restartpolicy"`},
		{"sidecar/stack.yaml", "sizeLimit: 16Mi", "sizeLimit: 16 megabytes", "quantities must match"},
		{"hostnetwork/program.yaml", "hostNetwork: true", "hostNetworks: true", `unknown field "spec.template.spec.hostNetworks"`},
		{"examples/sidecar/client.yaml", "backoffLimit: 4", "backoffLimit: four", "cannot unmarshal string"},
		{"examples/sidecar/server.yaml", "image: nginx:stable", "image: [nginx]", "cannot unmarshal array"},
		{"examples/sidecar/kustomization.yaml", "server.yaml", "servers.yaml", "servers.yaml"},
	} {
		dir := filepath.Join(t.TempDir(), "kubernetes")
		if err := os.CopyFS(dir, os.DirFS(deployed)); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, test.file)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), test.old) {
			t.Errorf("%s does not have %q", test.file, test.old)
			continue
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(b), test.old, test.new, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		var errs []string
		for _, folder := range folders {
			if _, err := build(filepath.Join(dir, folder)); err != nil {
				errs = append(errs, err.Error())
			}
		}
		if all := strings.Join(errs, "\n"); !strings.Contains(all, test.want) {
			t.Errorf("%s with %q: %q, want %q", test.file, test.new, all, test.want)
		}
	}
}
