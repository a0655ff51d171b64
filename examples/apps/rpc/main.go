// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"smcr/userstack"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("rpc: ")
	listen := flag.String("listen", "", "serve on this `address`")
	flag.Parse()
	if (*listen == "") == (flag.NArg() != 1) {
		fmt.Fprintln(os.Stderr, "usage: rpc -listen ADDRESS\n       rpc HOST:PORT")
		flag.PrintDefaults()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, flag.Arg(0)); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen, server string) (err error) {
	stack, err := userstack.New(userstack.Config{})
	if err != nil {
		return err
	}
	// Close tells the peers that the link groups end.
	defer func() { err = errors.Join(err, stack.Close()) }()
	if listen != "" {
		return serve(ctx, stack, listen)
	}
	return watch(ctx, stack, server)
}

// serve answers calls until ctx ends. Then it says so to those who watch.
func serve(ctx context.Context, stack *userstack.Stack, address string) error {
	l, err := stack.Listen("tcp", address)
	if err != nil {
		return err
	}
	srv, state := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(srv, state)
	fmt.Println("listening on", l.Addr())
	stop := context.AfterFunc(ctx, func() {
		state.Shutdown()
		// Streams that clients keep open end after a while.
		force := time.AfterFunc(5*time.Second, srv.Stop)
		defer force.Stop()
		srv.GracefulStop()
	})
	defer stop()
	return srv.Serve(l)
}

// watch prints the state of the server until it does not serve any more.
func watch(ctx context.Context, stack *userstack.Stack, server string) error {
	// With the scheme passthrough, the dialer gets the name, and the stack resolves it.
	conn, err := grpc.NewClient("passthrough:///"+server,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := stack.DialContext(ctx, "tcp", address)
			if err == nil {
				log.Printf("%s: SMC-R: %v", c.RemoteAddr(), userstack.IsSMC(c))
			}
			return c, err
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	now, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	fmt.Println("now:", now.GetStatus())
	stream, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	for {
		next, err := stream.Recv()
		if err != nil {
			return err
		}
		fmt.Println("watched:", next.GetStatus())
		if next.GetStatus() == grpc_health_v1.HealthCheckResponse_NOT_SERVING {
			return nil
		}
	}
}
