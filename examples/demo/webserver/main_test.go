// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"smcr/internal/testing/testkind"
)

func TestContent(t *testing.T) {
	testkind.System(t)
	mux := http.NewServeMux()
	mux.Handle("GET /bytes/{n}", newGenerator())
	srv := httptest.NewServer(mux)
	defer srv.Close()

	get := func(path string) (*http.Response, []byte) {
		t.Helper()
		resp, err := http.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, b
	}
	for _, n := range []int{0, 1, 7, blockSize - 1, blockSize, 3*blockSize + 5} {
		resp, b := get("/bytes/" + strconv.Itoa(n))
		sum := sha256.Sum256(b)
		if len(b) != n || resp.Header.Get("X-Content-Sha256") != hex.EncodeToString(sum[:]) {
			t.Errorf("/bytes/%d: %d bytes, header %q, digest %x", n, len(b), resp.Header.Get("X-Content-Sha256"), sum)
		}
		_, again := get("/bytes/" + strconv.Itoa(n))
		if !bytes.Equal(b, again) {
			t.Errorf("/bytes/%d differs from one request to the next", n)
		}
	}
	_, b := get("/bytes/" + strconv.Itoa(2*blockSize))
	if bytes.Equal(b[:blockSize], b[blockSize:]) {
		t.Error("blocks cannot be told apart")
	}
	for _, path := range []string{"/bytes/x", "/bytes/-1", "/bytes/99999999999999999999"} {
		if resp, _ := get(path); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: status %d", path, resp.StatusCode)
		}
	}
}
