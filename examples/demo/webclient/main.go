// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

func main() {
	parallel := flag.Int("c", 1, "download over `N` connections at the same time")
	repeat := flag.Int("n", 1, "download `N` times on each connection")
	pause := flag.Duration("pause", 0, "keep the connections open for this `time` after the last download")
	timeout := flag.Duration("timeout", 5*time.Minute, "give up after this `time`")
	flag.Parse()
	if flag.NArg() != 1 || *parallel < 1 || *repeat < 1 {
		fmt.Fprintln(os.Stderr, "usage: webclient [-c N] [-n N] [-pause D] [-timeout D] URL")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()

	start := time.Now()
	results := make([]result, *parallel)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { results[i] = download(ctx, flag.Arg(0), *repeat) })
	}
	wg.Wait()
	took := time.Since(start)

	var all int64
	var errs []error
	for i, r := range results {
		all += r.bytes
		errs = append(errs, r.err)
		if r.err == nil && *parallel == 1 {
			fmt.Printf("webclient: sha256 %s, as the server says: %v\n", r.digest, r.verified)
		} else if r.err == nil && r.digest != results[0].digest {
			errs = append(errs, fmt.Errorf("connection %d received other bytes than connection 0", i))
		}
	}
	fmt.Printf("webclient: transferred %d bytes over %d connections in %.3f s, %.0f MiB/s\n",
		all, *parallel, took.Seconds(), float64(all)/(1<<20)/took.Seconds())
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, "webclient:", err)
		os.Exit(1)
	}
	select {
	case <-time.After(*pause):
	case <-ctx.Done():
	}
}

// result of the downloads over one connection.
type result struct {
	bytes    int64
	digest   string // of the last download, hexadecimal
	verified bool   // against the server's word
	err      error
}

// download gets url repeat times over a connection of its own.
func download(ctx context.Context, url string, repeat int) (r result) {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, MaxConnsPerHost: 1, ReadBufferSize: 256 << 10}}
	for range repeat {
		if r.err = r.get(ctx, client, url); r.err != nil {
			return r
		}
	}
	return r
}

func (r *result) get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, resp.Status)
	}
	h := sha256.New()
	n, err := io.CopyBuffer(h, struct{ io.Reader }{resp.Body}, make([]byte, 256<<10))
	r.bytes += n
	if err != nil {
		return fmt.Errorf("get %s: after %d bytes: %w", url, n, err)
	}
	r.digest = hex.EncodeToString(h.Sum(nil))
	want := resp.Header.Get("X-Content-Sha256")
	r.verified = want == r.digest
	if want != "" && !r.verified {
		return fmt.Errorf("get %s: sha256 is %s, the server says %s", url, r.digest, want)
	}
	return nil
}
