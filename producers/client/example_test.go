package client_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// An agent reports each answer of its policy and what the world said to it. Here the log is in memory; client.HTTP writes to a gateway.
func Example() {
	ctx := context.Background()
	c, err := client.New(memlog.New(4), client.Config{Tenant: "acme", Source: "support-agent/1.2"})
	if err != nil {
		log.Fatal(err)
	}
	session := c.Session("ticket-4711")
	_, err = session.Action(ctx, &schemas.ActionTaken{
		Context:  client.Context(client.System("You help with orders."), client.User("Where is my parcel?")),
		Response: client.Assistant("It was delivered yesterday."),
		Model:    "my-model",
	})
	if err != nil {
		log.Fatal(err) // not durable; call again with client.ID(the returned id)
	}
	err = session.NextState(ctx, []*schemas.Observation{client.Reply("No, I asked about the second one!")})
	if err != nil {
		log.Fatal(err)
	}
	if err := session.End(ctx, "closed by the user", nil); err != nil {
		log.Fatal(err)
	}
	if err := c.Close(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("acknowledged")
	// Output: acknowledged
}

// Send does not wait for the log; the future does.
func ExampleSession_Send() {
	ctx := context.Background()
	c, err := client.New(memlog.New(4), client.Config{Tenant: "acme", Linger: time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	var sent []*client.Future
	for i := range 100 {
		f, err := c.Session(fmt.Sprint("episode-", i)).Send(ctx, &schemas.OutcomeReported{Score: 1, Checker: "unit tests"})
		if err != nil {
			log.Fatal(err)
		}
		sent = append(sent, f)
	}
	for _, f := range sent {
		if err := f.Wait(ctx); err != nil {
			log.Fatal(err)
		}
	}
	if err := c.Close(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(sent), "events are durable")
	// Output: 100 events are durable
}
